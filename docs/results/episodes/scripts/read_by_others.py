"""Read exported episodes with the loading functions of the target programs.

read_by_others.py <out.json> <folder> <checkout of danijar/dreamerv3> <checkout of dreamerv3-torch>

<folder> contains the export of one run in each format: own, dreamerv3, minari. dreamerv3-torch reads own. Run
this with a separate interpreter that has elements and minari. All arrays must equal those in the own format.
"""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import minari  # pyright: ignore[reportMissingImports]
import numpy as np

LENGTH, BATCH = 65, 16


def dreamerv3(folder: Path, checkout: Path, episodes: list[dict[str, np.ndarray]]) -> dict[str, int]:
    """Load with `Replay.load`, and sample windows. Skip its `embodied/__init__.py` (needs jax)."""
    for name in ("embodied", "embodied.core"):
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
    from embodied.core.replay import Replay  # pyright: ignore[reportMissingImports]

    stream = {key: np.concatenate([each[key] for each in episodes]) for key in episodes[0]}
    led = stream.pop("action").argmax(1)
    stream["action"] = np.append(led[1:], 0) * ~stream["is_last"]
    replay = Replay(LENGTH, directory=folder)
    replay.load()
    assert len(replay) == len(led) - LENGTH + 1
    steps = {
        tuple(row): at
        for at, row in enumerate(
            np.concatenate([np.load(file)["stepid"] for file in sorted(folder.glob("*.npz"))])
        )
    }
    batch = replay.sample(BATCH)
    for row in range(BATCH):
        start = steps[tuple(batch["stepid"][row, 0])]
        for key, values in stream.items():
            expected = values[start : start + LENGTH].copy()
            if key == "is_first":
                # The loader marks the start of each window.
                expected[0] = True
            np.testing.assert_array_equal(batch[key][row], expected, err_msg=key)
    return {"chunks": len(replay.chunks), "windows": len(replay), "windows_compared": BATCH}


def dreamerv3_torch(folder: Path, checkout: Path, episodes: list[dict[str, np.ndarray]]) -> dict[str, int]:
    """Load with `load_episodes` of the checkout's `tools.py`, and sample windows with `sample_episodes`."""
    sys.path.insert(0, str(checkout))
    import tools  # pyright: ignore[reportMissingImports]

    loaded = tools.load_episodes(folder, reverse=False)
    assert len(loaded) == len(episodes)
    for found, expected in zip(loaded.values(), episodes, strict=True):
        for key in expected.keys():
            np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
    windows = tools.from_generator(tools.sample_episodes(loaded, LENGTH), BATCH)
    assert next(windows)["image"].shape == (BATCH, LENGTH, *episodes[0]["image"].shape[1:])
    return {"episodes": len(loaded), "records": sum(len(each["reward"]) for each in loaded.values())}


def in_minari(folder: Path, episodes: list[dict[str, np.ndarray]]) -> dict[str, int]:
    """Load with `minari.load_dataset` from a folder in `MINARI_DATASETS_PATH`."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder.parent.absolute())
    dataset = minari.load_dataset(folder.name)
    for found, expected in zip(dataset.iterate_episodes(), episodes, strict=True):
        np.testing.assert_array_equal(found.observations["image"], expected["image"])
        np.testing.assert_array_equal(found.actions, expected["action"][1:].argmax(1))
        np.testing.assert_array_equal(found.rewards, expected["reward"][1:])
        assert found.terminations[-1] == expected["is_terminal"][-1] != found.truncations[-1]
        assert dataset.observation_space.contains({"image": found.observations["image"][0]})
        assert dataset.action_space.contains(found.actions[0])
    return {"episodes": int(dataset.total_episodes), "steps": int(dataset.total_steps)}


def main(out: str, exports: str, dreamer: str, torch_dreamer: str) -> None:
    """Read all three formats, and write the results."""
    folder = Path(exports)
    own = sorted((folder / "own").glob("*.npz"))
    episodes = [{key: values for key, values in np.load(file).items()} for file in own]
    found = {
        "versions": {name: metadata.version(name) for name in ("elements", "minari", "numpy", "h5py")},
        "dreamerv3": dreamerv3(folder / "dreamerv3", Path(dreamer), episodes),
        "dreamerv3-torch": dreamerv3_torch(folder / "own", Path(torch_dreamer), episodes),
        "minari": in_minari(folder / "minari", episodes),
    }
    Path(out).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
