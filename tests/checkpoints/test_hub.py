"""`hub:<owner>/<name>` is downloaded once, from a local hub, and then does not need the network."""

import shutil
import socket
import sys
from pathlib import Path

import pytest

import reverie
from reverie.checkpoints.pretrained import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, resolve_pretrained
from reverie.checkpoints.run_folder import begin_with

from ..runs.hub_server import COMMIT, NAME, hub_server

SOURCE = f"hub:{NAME}"
OURS = Path(resolve_pretrained("pretrained:catch"))
POPULATION = Path(__file__).parents[2] / "docs/results/population/pendulum/seed_1/config.yaml"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_ASSETS_CACHE", str(tmp_path / "assets"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def use(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Set the address, as HF_ENDPOINT would before the library is imported."""
    files = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an address without a server."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    use(monkeypatch, f"http://127.0.0.1:{port}")


def served(folder: Path) -> Path:
    """Return a repository with our networks, and with a file that must not be downloaded."""
    shutil.copytree(OURS, folder)
    (folder / "sitecustomize.py").write_text("raise SystemExit")
    return folder


def test_a_repository_is_fetched_once_and_played_as_the_package_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server(served(tmp_path / "served")) as (address, asked):
        use(monkeypatch, address)
        agent = reverie.load(SOURCE, device="cpu")
        folder = Path(resolve_pretrained(SOURCE))
    # These are one HEAD and one GET.
    assert sum(WEIGHTS_FILE in path for path in asked) == 2
    assert {file.name for file in folder.iterdir()} == {CARD_FILE, CONFIG_FILE, WEIGHTS_FILE}
    assert all(file.is_file() and not file.is_symlink() for file in folder.iterdir())
    ours = reverie.load("pretrained:catch", device="cpu")
    assert agent.step == ours.step
    env = agent.make_env()
    observation, _ = env.reset(seed=0)
    assert agent.act(observation) == ours.act(observation)
    # The server has stopped, so the downloaded files are used.
    assert resolve_pretrained(SOURCE) == resolve_pretrained(f"{SOURCE}@{COMMIT}") == str(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "hub:someone/cat",
            r"hub:someone/cat does not exist on the hub, or you have no access\. Check the name",
        ),
        (f"{SOURCE}@v2", "hub:someone/catch@v2 has no revision v2"),
        ("hub:a/b/c", r"hub:a/b/c is not a repository\. Write hub:<owner>/<name>"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server(tmp_path) as (address, _):
        use(monkeypatch, address)
        with pytest.raises(reverie.UserError, match=message):
            resolve_pretrained(source)


def test_a_repository_of_something_else_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served").mkdir()
    shutil.copy(OURS / CONFIG_FILE, tmp_path / "served")
    with hub_server(tmp_path / "served") as (address, _):
        use(monkeypatch, address)
        with pytest.raises(reverie.UserError, match=f"{SOURCE} has no {WEIGHTS_FILE}. reverie-export writes"):
            resolve_pretrained(SOURCE)


def test_a_population_of_a_stranger_is_one_sentence(tmp_path: Path) -> None:
    folder = served(tmp_path / "served")
    shutil.copy(POPULATION, folder / CONFIG_FILE)
    with pytest.raises(reverie.UserError, match="Populations can only be evaluated"):
        reverie.load(folder, device="cpu")
    with pytest.raises(reverie.UserError, match="served is a population, but only Dreamer networks"):
        begin_with(str(folder), [])


@pytest.mark.usefixtures("nobody")
def test_without_a_network_and_an_earlier_copy_it_is_one_sentence() -> None:
    with pytest.raises(reverie.UserError, match="the hub does not respond, and there is no cached copy"):
        resolve_pretrained(SOURCE)


def test_a_proxy_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hub_server(tmp_path) as (address, _):
        use(monkeypatch, "https://hub.invalid")
        monkeypatch.setenv("HTTPS_PROXY", address)
        with pytest.raises(reverie.UserError, match=f"^{SOURCE} cannot be downloaded: "):
            resolve_pretrained(SOURCE)


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(reverie.UserError, match=r"needs huggingface_hub.*-e '\.\[hub\]'"):
        resolve_pretrained(SOURCE)
