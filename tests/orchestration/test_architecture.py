"""The training step described in docs/architecture.md."""

from pathlib import Path

from ..runs.helpers import CATCH
from ..runs.warm import Server

ROOT = Path(__file__).parents[2]
COUNT = """
import runpy, sys, traceback
from pathlib import Path
import reverie.envs.vector as vector
from reverie.planning import preflight
from reverie.models import LaProp

counts = {"environments": 0, "plans": 0}
files = set()

def counted(function, name):
    def call(*args, **kwargs):
        counts[name] += 1
        return function(*args, **kwargs)
    return call

step = LaProp.step
def seen(*args, **kwargs):
    files.clear()  # the dry run of the plan steps, too
    files.update(frame.filename for frame in traceback.extract_stack()[:-1])
    return step(*args, **kwargs)

LaProp.step = seen
vector.make_backend = counted(vector.make_backend, "environments")
preflight.plan_run = counted(preflight.plan_run, "plans")
sys.argv = ["scripts/train.py", *sys.argv[1:]]
try:
    runpy.run_path("scripts/train.py", run_name="__main__")
finally:
    here = Path.cwd()
    paths = {path.relative_to(here) for path in map(Path.resolve, map(Path, files)) if here in path.parents}
    own = sorted(str(path) for path in paths if path.parts[0] in ("src", "scripts"))
    games = [name for name in sys.modules if {"pong", "on_track"} & {*name.split(".")}]
    print(counts, games, *own, sep="\\n", file=sys.stderr)
"""


def test_a_step_is_seven_files_deep_and_a_run_starts_one_environment_and_makes_one_plan_before(
    tmp_path: Path, server: Server
) -> None:
    program = tmp_path / "count.py"
    program.write_text(COUNT)
    overrides = [*CATCH, "training.total_timesteps=60", f"run_dir={tmp_path / 'run'}"]
    ended = server.run("script", str(program), *overrides, folder=ROOT)
    assert ended.code == 0, ended.error
    lines = ended.error.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("{'environments'"))
    # The second environment is the run's own.
    assert lines[at] == "{'environments': 2, 'plans': 1}"
    # A run without a reference imports neither Pong's instruments nor `on_track`.
    assert lines[at + 1] == "[]"
    files = lines[at + 2 :]
    assert len(files) <= 7, files
