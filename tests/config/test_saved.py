"""A saved configuration is loaded with the same values, or refused."""

import random
from pathlib import Path
from typing import cast

import pytest
from omegaconf import DictConfig, OmegaConf

from reverie.config.compose import compose_jobs
from reverie.config.saved import read_config, saved_text
from reverie.utils.errors import UserError

[COMPOSED] = compose_jobs(["experiment=dreamer_catch", "device=cpu", "name=sealed"])
CONFIG = cast(DictConfig, OmegaConf.create(OmegaConf.to_container(COMPOSED, resolve=True, enum_to_str=True)))


def damaged_copies(data: bytes) -> dict[str, bytes]:
    """Return copies of a file with typical damage by disks, copies and editors, at many positions."""
    places = random.Random(0).sample(range(len(data)), 60)
    copies = {f"cut at {at}": data[:at] for at in places}
    copies |= {f"without the first {at}": data[at:] for at in places if at}
    copies |= {
        f"bit {at % 8} of {at}": data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in places
    }
    copies |= {
        f"zeros from {at}": data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :] for at in places
    }
    copies |= {f"64 bytes gone at {at}": data[:at] + data[at + 64 :] for at in places}
    lines = data.splitlines(keepends=True)
    copies |= {f"line {at} gone": b"".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))}
    copies |= {f"line {at} twice": b"".join(lines[: at + 1] + lines[at:]) for at in range(len(lines))}
    return copies


def test_no_damaged_copy_is_read_with_other_values(tmp_path: Path) -> None:
    path, data = tmp_path / "config.yaml", saved_text(CONFIG)
    path.write_bytes(data)
    whole = read_config(path)
    assert whole.name == "sealed"
    for damage, copy in damaged_copies(data).items():
        path.write_bytes(copy)
        try:
            found = read_config(path)
        except UserError:
            continue
        assert found == whole, damage


def test_an_edit_is_refused_with_how_to_proceed_and_kept_without_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(saved_text(CONFIG))
    before = read_config(path).training.batch_size
    edited = path.read_text().replace(f"batch_size: {before}", "batch_size: 7")
    assert edited != path.read_text()
    path.write_text(edited)
    with pytest.raises(
        UserError, match=r"resume=<run> key=value.* delete the two lines that start with `# check"
    ):
        read_config(path)
    path.write_text("".join(line for line in edited.splitlines(keepends=True) if not line.startswith("#")))
    assert read_config(path).training.batch_size == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seed: 1\ntraining:\n  overlap: 9\n",
            r"Line 3 .* sets training\.overlap, which must be true or false",
        ),
        ("deterministic: -1\n", r"Line 1 .* sets deterministic, which must be true or false"),
        ("seed: ???\n", r"Line 1 .* sets seed to \?\?\?"),
        ("env:\n  kwargs:\n    sizes:\n      a: ???\n", r"Line 4 .* sets env\.kwargs\.sizes\.a to \?\?\?"),
    ],
)
def test_a_file_without_checksum_is_not_converted_silently(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path / "config.yaml")
