"""Run a script from a make recipe: `python scripts/for_make.py scripts/train.py experiment=dreamer_catch`.

make reports every exit code except 0 as an error, even if Ctrl-C ended the run with a checkpoint. This script
turns that exit code into 0. make itself also receives Ctrl-C and stops. Other exit codes are
unchanged.

With `--resume`, the same arguments continue the run that they started.
"""

import argparse
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from reverie.utils.errors import FlagParser, exit_on_user_error
from reverie.utils.parent import PARENT_VARIABLE

RESUME_ME_EXIT_CODE = 75
CALM = (RESUME_ME_EXIT_CODE, -signal.SIGINT)
CONFIG_FILE = "config.yaml"


def continued(arguments: Sequence[str]) -> list[str]:
    """Return arguments that resume the earlier run with these arguments, or that start a new run.

    The run's folder is `run_dir=`, or is named after the experiment and a checksum of all other arguments.
    Settings that differ from the saved ones are passed on. The run rejects those that cannot change.
    """
    if any(word.startswith(("-", "resume=", "hydra.")) for word in arguments):
        return [*arguments]
    typed = {key: value for key, _, value in (word.partition("=") for word in arguments)}
    others = "\n".join(sorted(word for word in arguments if not word.startswith("experiment=")))
    name = typed.get("experiment", "run") + (f"-{zlib.crc32(others.encode()):08x}" if others else "")
    folder = typed.get("run_dir", f"experiments/{name}")
    if not Path(folder, CONFIG_FILE).is_file():
        return [*arguments, *([] if "run_dir" in typed else [f"run_dir={folder}"])]
    print(f"continuing {folder}. For a new run, move it or add run_dir=<folder> to ARGS.", flush=True)
    return [f"resume={folder}", *changes_of(Path(folder, CONFIG_FILE), arguments)]


def changes_of(saved_in: Path, arguments: Sequence[str]) -> list[str]:
    """Return the arguments that differ from the saved configuration.

    An experiment differs if the name of the run does, and another group if one of its settings does. Without
    `run_dir=`, the folder is named after the arguments, so their groups are the same.
    """
    # Import these here, so that a new run does not wait for them.
    from omegaconf import DictConfig, OmegaConf

    from reverie.config.compose import compose_jobs
    from reverie.config.overrides import parse
    from reverie.config.saved import read_config
    from reverie.config.schema import leaves

    def settings_of(config: DictConfig) -> dict[str, object]:
        return dict(leaves(OmegaConf.to_container(config, resolve=True, enum_to_str=True)))

    last = {item.key_or_group: (word, item) for word, item in zip(arguments, parse(arguments), strict=True)}
    saved = settings_of(read_config(saved_in))
    composed = settings_of(compose_jobs(arguments)[0]) if "run_dir" in last else saved
    found = []
    for key, (word, item) in last.items():
        start = "name" if key == "experiment" else f"{key}."
        if group := [name for name in saved if name.startswith(start)]:
            # Settings that are typed, too, are compared on their own.
            is_same = all(composed.get(name) == saved[name] for name in group if name not in last)
        else:
            is_same = key == "run_dir" or item.value() == saved.get(key)
        if not is_same:
            found.append(word)
    return found


def main() -> int:
    """Return the exit code for make."""
    parser = FlagParser(description="Run a script from a make recipe, without an error after Ctrl-C.")
    parser.add_argument("--resume", action="store_true", help="resume the run with the same arguments")
    parser.add_argument("script", help="a Python script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    with exit_on_user_error():
        flags = parser.parse_args()
        arguments = continued(flags.arguments) if flags.resume else flags.arguments
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    environment = os.environ | {PARENT_VARIABLE: str(os.getpid())}
    child = subprocess.Popen([sys.executable, flags.script, *arguments], env=environment)
    # make sends SIGTERM only to this process.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    if interrupts and code in CALM:
        return 0
    # Shells encode signals in the same way.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
