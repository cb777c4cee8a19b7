"""Untrusted files: each raises one error with its name, without running code or allocating memory."""

import io
import json
import os
import struct
import sys
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari.serialization import serialize_space

from reverie.episodes import Format, find_action, find_episodes, npz, write_episodes
from reverie.episodes import episode as bounds
from reverie.utils.errors import UserError
from reverie.utils.timestep import ActionSpec

from .made import CATCH, episode

CHOICES = ActionSpec(3, True)
FLOATS = "{'descr': '<f4', 'fortran_order': False, 'shape': "


def refusal(path: Path) -> str:
    """Return the single sentence that refuses a path or a file in its folder, within 8 MB of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as refused:
            for _ in find_episodes(folder_of(path)).read(CHOICES):
                pass
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    text = str(refused.value)
    assert "\n" not in text and str(path) in text and text.endswith(".") and len(text) < 600
    return text


def folder_of(path: Path) -> Path:
    return path.parent if path.suffix == ".npz" else path


def arrays(**changes: Any) -> dict[str, Any]:
    """Return the arrays of one episode in our own format."""
    last = np.arange(4) == 3
    flags = {"is_first": np.arange(4) == 0, "is_last": last, "is_terminal": last}
    action = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    whole = {"vector": np.ones((4, 2), np.float32), "action": action, "reward": np.zeros(4), **flags}
    whole["reward"][3] = 1
    return {name: values for name, values in (whole | changes).items() if values is not None}


def saved(folder: Path, name: str = "episode_000001-4.npz", **changes: Any) -> Path:
    """Add a file with one modified episode to a folder of our own episodes."""
    np.savez_compressed(folder / name, **arrays(**changes))
    describe(folder)
    return folder / name


def describe(folder: Path) -> None:
    """Write the index of all files in a folder."""
    index = {"version": 1, "observation": {"vector": {"shape": [2], "dtype": "<f4"}}}
    index |= {"action": {"size": 3, "is_discrete": True}, "episodes": len(list(folder.glob("*.npz")))}
    (folder / "episodes.json").write_text(json.dumps(index))


def test_the_unmodified_file_is_an_episode(tmp_path: Path) -> None:
    [found] = find_episodes(saved(tmp_path).parent).read(CHOICES)
    assert found.observation["vector"].shape == (4, 2) and found.action.shape == (4, 3)


def with_member(folder: Path, data: bytes, name: str = "vector.npy", **options: Any) -> Path:
    """Return an episode with an array `vector` made of the bytes `data`."""
    path = saved(folder, vector=None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, data, **options)
    return path


def npy(shape: str, data: bytes = bytes(32), start: str = FLOATS, version: int = 1) -> bytes:
    """Return a numpy file with any shape."""
    header = f"{start}{shape}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<L", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + data


class Payload:
    """An object that calls code when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_an_array_of_pickled_objects_runs_nothing(tmp_path: Path) -> None:
    objects = np.array([Payload(tmp_path / "ran")] * 4, dtype=object)
    assert "`vector` has the dtype object, but only bool" in refusal(saved(tmp_path, vector=objects))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (npy("(1152921504606846976,)"), "declares 4,611,686,018,427,387,904 bytes"),
        (npy(f"({10**30}, {10**30})"), "the header of `vector` declares 4,000,000,000,000"),
        (npy("(-1, -8)"), "has the shape (-1, -8), but at most 6 sizes >= 0"),
        (npy("(4, 2)", bytes(31)), "declares 32 bytes, (4, 2) float32, but 31 follow"),
        (npy("(4, 2)", bytes(33)), "but 33 follow"),
        (npy("(1152921504606846976, 0)", b""), "it has 4 rewards, but `vector` has the shape"),
        (npy("(1, 1, 1, 1, 1, 1, 8)"), "at most 6 sizes"),
        (npy("(4, 2)", start=FLOATS.replace("<f4", ">f4")), "`vector` has the dtype >f4"),
        (npy("(4, 2)", start=FLOATS.replace("<f4", "|O")), "`vector` has the dtype object"),
        (npy("(4, 2)", start=FLOATS.replace("<f4", "<U1")), "`vector` has the dtype <U1"),
        (npy("(4, 2)", start=FLOATS.replace("'<f4'", "[('a', '<f4')]")), "the dtype [('a', '<f4')]"),
        (npy("().__class__"), "malformed node or string"),
        (npy("__import__('os').mkdir('ran')"), "malformed node or string"),
        (npy("(4, 2)", start=FLOATS.replace("<f4", "V2000000000")), "`vector` has the dtype |V2000000000"),
        (npy("(" * 5000), "is invalid ("),
        (npy("-" * 9000 + "1"), "is invalid ("),
        (npy("(4, 2)" + " " * 20_000), "is invalid (Header info length (20"),
        (npy("(4, 2)", version=2), "`vector` is not in version 1.0"),
        (b"", "EOF: reading magic string"),
        (b"\x93NUMPY\x01\x00\xff\xff", "EOF: reading array header"),
    ],
)
def test_an_array_that_lies_about_itself(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in refusal(with_member(tmp_path, data))


def test_a_zip_that_would_grow_more_than_deflate_allows(tmp_path: Path) -> None:
    path = with_member(tmp_path, npy("(4, 2)"), compress_type=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<L", 2**31)
    path.write_bytes(data)
    monkey = refusal(path)
    assert "its arrays occupy 2,147,4" in monkey or "would grow from" in monkey
    data[entry + 24 : entry + 28] = struct.pack("<L", 2**30)
    path.write_bytes(data)
    assert "`vector` would grow from" in refusal(path)


def test_a_zip_bomb_within_what_deflate_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 40 MB that compress to 40 kB.
    zeros = np.zeros((4, 10_000_000), np.uint8)
    path = saved(tmp_path, vector=zeros)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(bounds, "MOST_BYTES", 10_000_000)
    assert "its arrays occupy 40,0" in refusal(path)


def test_a_zip_that_says_it_is_smaller_than_it_is(tmp_path: Path) -> None:
    path = with_member(tmp_path, npy("(4, 2)", bytes(40_000_000)), compress_type=zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<L", len(npy("(4, 2)")))
    path.write_bytes(data)
    assert "Bad CRC-32" in refusal(path)


def test_zips_that_numpy_does_not_write(tmp_path: Path) -> None:
    path = with_member(tmp_path, npy("(4, 2)"), compress_type=zipfile.ZIP_LZMA)
    assert "compressed with a method that numpy does not use" in refusal(path)
    path = with_member(tmp_path, npy("(4, 2)"))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert "`vector` is encrypted" in refusal(path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = with_member(tmp_path, npy("(4, 2)"), name="reward.npy")
    assert "two arrays with the same name" in refusal(path)
    many: dict[str, Any] = {f"key_{index}": np.zeros(4) for index in range(300)}
    path = saved(tmp_path, **many)
    assert "it has 306 arrays, but at most 256 are allowed" in refusal(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"more"
    assert "does not end as an npz file should" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"PK\5\6", b"text" * 20, bytes(4096)])
def test_files_that_are_no_zip(tmp_path: Path, content: bytes) -> None:
    path = saved(tmp_path)
    path.write_bytes(content)
    assert "does not end as an npz file should" in refusal(path)


def test_a_file_cut_or_changed_anywhere(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for stop in range(0, len(whole), 37):
        path.write_bytes(whole[:stop])
        refusal(path)
    chance = np.random.default_rng(0)
    # Each file is refused, unless the change affects only unread bytes.
    for _ in range(300):
        data = bytearray(whole)
        data[chance.integers(len(data))] ^= 1 << chance.integers(8)
        path.write_bytes(data)
        try:
            list(find_episodes(tmp_path).read(CHOICES))
        except UserError as error:
            assert "\n" not in str(error)


def test_links_and_pipes(tmp_path: Path) -> None:
    for name in ("away", "link", "pipe"):
        (tmp_path / name).mkdir()
    path = saved(tmp_path / "away")
    (tmp_path / "link" / "a-4.npz").symlink_to(path)
    describe(tmp_path / "link")
    assert "it is a link, not a regular file" in refusal(tmp_path / "link" / "a-4.npz")
    os.mkfifo(tmp_path / "pipe" / "a-4.npz")
    describe(tmp_path / "pipe")
    assert "it is a pipe, not a regular file" in refusal(tmp_path / "pipe" / "a-4.npz")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "main_data.hdf5").symlink_to(hdf5(tmp_path / "away"))
    metadata(tmp_path / "data")
    assert "it is a link, not a regular file" in refusal(tmp_path / "data")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward": None}, "it has no `reward`. Its arrays: action, is_first, is_last, is_terminal, vector)"),
        ({"action": None}, "it has no `action`"),
        ({"is_first": None}, "it has no `is_first`"),
        ({"vector": None}, "it has no `vector`. Its arrays: action, is_first"),
        ({"vector": np.ones((3, 2))}, "it has 4 rewards, but `vector` has the shape (3, 2)"),
        ({"vector": np.float32(1)}, "it has 4 rewards, but `vector` has the shape ()"),
        ({"vector": np.full((4, 2), np.inf)}, "`vector` has numbers that are not finite"),
        ({"reward": np.array([0, np.nan, 0, 0])}, "`reward` has numbers that are not finite"),
        ({"reward": np.array([0, 1e300, 0, 0])}, "`reward` has numbers that are not finite"),
        ({"reward": np.array([2.0, 0, 0, 0])}, "its first reward is 2"),
        ({"reward": np.zeros((4, 1))}, "records with one reward"),
        ({"action": np.full((4, 3), np.nan, np.float32)}, "not one-hot vectors, one of 3"),
        ({"action": np.ones((4, 3), np.float32)}, "not one-hot vectors, one of 3"),
        ({"action": np.ones((4, 2), np.float32)}, "its actions are float32 (2,), not one of 3"),
        ({"action": np.array([0, 1, 3, 0])}, "its actions go up to 3, but there are only 3 choices"),
        ({"action": np.array([0, -1, 2, 0])}, "but there are only 3 choices"),
        ({"is_first": np.array([1, 0, 1, 0])}, "not a single complete episode"),
        ({"is_first": np.zeros(4)}, "not a single complete episode"),
        ({"is_terminal": np.array([0, 1, 0, 0])}, "not a single complete episode"),
        ({"is_terminal": np.zeros((4, 2))}, "`is_terminal` has the shape (4, 2)"),
    ],
)
def test_arrays_that_are_no_episode(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    assert reason in refusal(saved(tmp_path, **changes))


def test_actions_without_bound_take_no_memory(tmp_path: Path) -> None:
    name = f"20240711T091409F123-{1:022d}-{2:022d}-4.npz"
    path = saved(tmp_path, name, action=np.array([0, 1, 2**60, 0]))
    with pytest.raises(
        UserError, match=r"actions go up to 1,152,921,504,606,846,976, but must be below 100,000"
    ):
        find_action(find_episodes(path))


def test_episodes_that_differ_from_each_other(tmp_path: Path) -> None:
    saved(tmp_path, "a-4.npz")
    saved(tmp_path, "b-4.npz", vector=np.ones((4, 3), np.float32))
    with pytest.raises(UserError, match=r"b-4.npz is invalid \(its observation `vector` is float32 \(3,\)"):
        list(find_episodes(tmp_path).read(CHOICES))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "it has version 2, but only version 1 is supported"),
        ({"episodes": 2}, "it lists 2 episodes, but the folder has 1"),
        ({"episodes": 10**39}, "is not a valid size"),
        ({"action": {"size": 0, "is_discrete": True}}, "its action is invalid"),
        ({"action": {"size": 2**70, "is_discrete": True}}, "is not a valid size"),
        ({"action": {"size": 3, "is_discrete": "yes"}}, "its action is invalid"),
        ({"action": {"size": 3, "is_discrete": True, "parts": [3, -1]}}, "is not a valid size"),
        ({"action": {"size": 3, "is_discrete": True, "parts": [3, 0]}}, "its action is invalid"),
        ({"action": [3]}, "TypeError"),
        ({"observation": {"image": {"shape": [-1], "dtype": "|u1"}}}, "-1 is not a valid size"),
        ({"observation": {"image": {"shape": [1], "dtype": "|O"}}}, "KeyError"),
        ({"observation": {"other": {"shape": [1], "dtype": "|u1"}}}, "it has no `other`"),
    ],
)
def test_descriptions_of_our_own_that_lie(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    write_episodes(tmp_path, Format.own, [episode(CATCH, 4)], CATCH)
    index = tmp_path / "episodes.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    assert reason in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"version": 1', "[1]", '"\\u0000"', "1" * 5000])
def test_invalid_descriptions_are_refused(tmp_path: Path, text: str) -> None:
    write_episodes(tmp_path, Format.own, [episode(CATCH, 4)], CATCH)
    (tmp_path / "episodes.json").write_text(text)
    refusal(tmp_path)


def test_folders_without_episodes(tmp_path: Path) -> None:
    assert "nowhere does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "a.txt").touch()
    for path in (tmp_path, tmp_path / "a.txt"):
        assert "has no episodes: it has no episodes.json, *.npz or main_data.hdf5" in refusal(path)


def hdf5(folder: Path, change: Callable[[Any], None] | None = None) -> Path:
    """Write a Minari dataset with one modified episode."""
    path = folder / "main_data.hdf5"
    with h5py.File(path, "w") as file:
        group = file.create_group("episode_0")
        group["observations"], group["actions"] = np.ones((4, 2)), np.array([0, 1, 2])
        group["rewards"], group["terminations"] = np.zeros(3), np.array([False, False, True])
        group["truncations"] = np.zeros(3, np.bool_)
        if change is not None:
            change(group)
    metadata(folder)
    return path


def metadata(folder: Path, **changes: Any) -> None:
    """Write the metadata of a Minari dataset, without the keys whose values are `None`."""
    seen, acting = spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(3)
    whole = {"data_format": "hdf5", "observation_space": serialize_space(seen)}
    whole |= {"action_space": serialize_space(acting), "jpeg_encoding": False} | changes
    kept = {name: value for name, value in whole.items() if value is not None}
    (folder / "metadata.json").write_text(json.dumps(kept))


def swapped(name: str, make: Callable[[Any], None]) -> Callable[[Any], None]:
    """Replace an array with the output of `make`."""

    def change(group: Any) -> None:
        del group[name]
        make(group)

    return change


def virtual(group: Any) -> None:
    layout = h5py.VirtualLayout((4, 2), np.float64)
    layout[:] = h5py.VirtualSource("/etc/passwd", "observations", (4, 2))
    group.create_virtual_dataset("observations", layout)


def aliased(group: Any) -> None:
    """Make groups that contain each other twice, so that reading them all takes forever."""
    inner = group.create_group("infos")
    for _ in range(64):
        outer, inner = inner, inner.create_group("a")
        outer["b"] = inner


TEXT = h5py.string_dtype()
HDF5: list[tuple[str, Callable[[Any], Any], str]] = [
    (
        "observations",
        lambda g: g.__setitem__("observations", h5py.ExternalLink("/etc/passwd", "/")),
        "a link",
    ),
    ("observations", lambda g: g.__setitem__("observations", h5py.SoftLink("/episode_0")), "is a link"),
    ("rewards", lambda g: g.__setitem__("rewards", h5py.SoftLink("/episode_0/rewards")), "is a link"),
    ("rewards", lambda g: g.__setitem__("rewards", g["truncations"]), "/rewards` is a link"),
    ("rewards", aliased, "/infos/a` is a link"),
    (
        "observations",
        lambda g: g.create_dataset("observations", (4, 2), "f8", external=[("/etc/passwd", 0, 64)]),
        "/observations` is in other files",
    ),
    ("observations", virtual, "/observations` is in other files"),
    (
        "observations",
        lambda g: g.create_dataset("observations", (2**40, 2**20), "f8", chunks=(1, 16)),
        "its arrays occupy 9,223,372,036,854,775,",
    ),
    (
        "observations",
        lambda g: g.create_dataset("observations", (4, 2), "i4", scaleoffset=0, chunks=(4, 2)),
        "or uses filters other than gzip and lzf",
    ),
    (
        "rewards",
        lambda g: g.create_dataset("infos/large", (2**30, 2), "f8", chunks=(1, 2)),
        "its arrays occupy 17,179,869,",
    ),
    (
        "observations",
        lambda g: g.create_dataset("observations", (0, 2), "f8", chunks=(2**20, 2**9), maxshape=(None, 2**9)),
        "its arrays occupy 4,294,967,",
    ),
    ("observations", lambda g: g.create_dataset("observations", (4,), h5py.vlen_dtype(np.uint8)), "object"),
    ("observations", lambda g: g.create_dataset("observations", (4,), TEXT), "the dtype object"),
    ("observations", lambda g: g.create_dataset("observations", (4,), h5py.ref_dtype), "the dtype object"),
    ("observations", lambda g: g.create_dataset("observations", (4, 2), ">f8"), "the dtype >f8"),
    (
        "observations",
        lambda g: g.create_dataset("observations", (4,), [("a", "f4"), ("b", "f4")]),
        "`vector` has the dtype [('a', '<f4'), ('b', '<f4')]",
    ),
    ("observations", lambda g: g.create_group("observations/a/b"), "AssertionError"),
    ("observations", lambda g: None, "KeyError"),
    (
        "observations",
        lambda g: g.create_dataset("observations", data=np.ones((3, 2))),
        "`vector` has the shape (3, 2)",
    ),
    ("observations", lambda g: g.create_dataset("observations", data=1.0), "`vector` has the shape ()"),
    ("rewards", lambda g: g.create_group("rewards"), "AssertionError"),
    ("rewards", lambda g: None, "KeyError"),
    ("rewards", lambda g: g.create_dataset("rewards", data=np.full(3, np.nan)), "not finite"),
    (
        "rewards",
        lambda g: g.create_dataset("rewards", data=np.ones((3, 1))),
        "must have one number per step",
    ),
    (
        "actions",
        lambda g: g.create_dataset("actions", data=np.zeros(4, int)),
        "it has 4 rewards, but `action` has the shape (5,)",
    ),
    ("actions", lambda g: g.create_dataset("actions", data=np.array([0, 1, 9])), "go up to 9"),
    ("actions", lambda g: g.create_dataset("actions", (3,), TEXT), ""),
    (
        "actions",
        lambda g: g.create_dataset("actions", data=np.zeros((3, 3))),
        "one action has the shape (3,), but Discrete(3) has ()",
    ),
    (
        "terminations",
        lambda g: g.create_dataset("terminations", data=np.ones(3, bool)),
        "must have one number per step",
    ),
]


@pytest.mark.parametrize(("name", "make", "reason"), HDF5, ids=[reason for _, _, reason in HDF5])
def test_hdf5_that_is_no_dataset(tmp_path: Path, name: str, make: Callable[[Any], Any], reason: str) -> None:
    assert reason in refusal(hdf5(tmp_path, swapped(name, make)))


def test_an_episode_that_is_a_link(tmp_path: Path) -> None:
    path = hdf5(tmp_path)
    with h5py.File(path, "r+") as file:
        file["episode_1"] = h5py.ExternalLink("other.hdf5", "/episode_0")
    assert "`episode_1` is a link" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"text" * 2000, b"\x89HDF\r\n\x1a\n" + bytes(2000)])
def test_invalid_hdf5_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(content)
    metadata(tmp_path)
    assert "main_data.hdf5 cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ({"type": "Text"}, "KeyError"),
        ({"type": "Other"}, "TypeError"),
        ({"type": "MultiDiscrete", "dtype": "int64", "nvec": [3, 0], "start": [0, 0]}, "have to be positive"),
        (
            {"type": "MultiDiscrete", "dtype": "int64", "nvec": [3, 2], "start": [0, 0]},
            "one action has the shape (), but MultiDiscrete([3 2]) has (2,)",
        ),
        (
            {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]},
            "one action has the shape (), but Box",
        ),
        ({"type": "Box", "dtype": "float32", "shape": [2**40, 2**40], "low": 0, "high": 1}, ""),
        ({"type": "Discrete", "n": 3, "start": "a"}, ""),
        ({"type": "Discrete", "n": 2**70, "start": 0}, ""),
        ([], "AssertionError"),
        (None, "AssertionError"),
    ],
)
def test_metadata_that_lies(tmp_path: Path, space: Any, reason: str) -> None:
    path = hdf5(tmp_path)
    metadata(tmp_path, action_space=[] if space is None else json.dumps(space))
    with pytest.raises(UserError) as refused:
        found = find_episodes(path)
        list(found.read(found.action or CHOICES))
    assert reason in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_metadata_that_names_code_runs_nothing(tmp_path: Path, name: str) -> None:
    """Minari's own library creates an environment from `env_spec` if a space is missing."""
    path = hdf5(tmp_path)
    spec = {"id": "A-v0", "entry_point": "os:mkdir", "kwargs": {"path": str(tmp_path / "ran")}}
    text = json.dumps(spec | {"additional_wrappers": [], "vector_entry_point": None})
    metadata(tmp_path, env_spec=text, **{name: None})
    with pytest.raises(UserError, match=r"metadata.json is invalid \(it must contain an action_space"):
        list(find_episodes(path).read(CHOICES))
    assert not (tmp_path / "ran").exists()
    metadata(tmp_path, env_spec=text)
    [found] = find_episodes(path).read(CHOICES)
    assert found.is_terminal and not (tmp_path / "ran").exists()


def test_minari_in_another_format_is_refused(tmp_path: Path) -> None:
    path = hdf5(tmp_path)
    metadata(tmp_path, data_format="arrow")
    with pytest.raises(UserError, match="data_format hdf5"):
        find_episodes(path)
    (tmp_path / "metadata.json").unlink()
    with pytest.raises(UserError, match=r"metadata.json cannot be read: No such file"):
        find_episodes(path)


def test_hdf5_changed_anywhere(tmp_path: Path) -> None:
    path = hdf5(tmp_path)
    whole, chance = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole)
        data[chance.integers(len(data))] ^= 1 << chance.integers(8)
        path.write_bytes(data)
        try:
            list(find_episodes(path).read(CHOICES))
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["h5py", "minari.dataset"])
def test_without_a_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = hdf5(tmp_path)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"Minari files need the package {name}: pip .* '\.\[minari\]'\.$"):
        list(find_episodes(path).read(CHOICES))


def test_what_is_read_is_what_numpy_reads(tmp_path: Path) -> None:
    for values in (
        np.float64(3),
        np.zeros((0, 3), np.int8),
        np.arange(6.0).reshape(2, 3).T,
        np.array([True]),
    ):
        stream = io.BytesIO()
        np.savez(stream, a=values)
        (tmp_path / "a.npz").write_bytes(stream.getvalue())
        found = npz.read_npz(tmp_path / "a.npz", lambda name: True, Counter())["a"]
        assert (found.dtype, found.shape, found.tolist()) == (values.dtype, values.shape, values.tolist())
