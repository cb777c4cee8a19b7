"""An unmodified program behaves the same under `heapwatch`, and its leaks are attributed to a holder."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest
from heapwatch import UsageError, Watch
from heapwatch.watch import command
from heapwatch.watch.report import WATCH_HTML, WATCH_JSON

from .watching import python, write

TRAIN = """
    import hashlib, json, os, sys, time
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    class Trainer:
        def update(self):
            loss = model(torch.randn(16, 64)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            if "leak" in sys.argv:
                kept.append(bytearray(60_000))
    trainer = Trainer()
    for step in range(int(sys.argv[1])):
        trainer.update()
    while "leak" in sys.argv and json.load(open("report/watch.json"))["verdict"] != "leak":
        trainer.update()
        time.sleep(0.002)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    weights = model.weight.detach().numpy().tobytes()
    print(hashlib.sha256(weights).hexdigest(), __name__, sys.argv[1:], __file__)
    sys.exit(3)
"""


WATCH = ("-m", "heapwatch", "--report", "report", "--share", "0.5", "--seconds", "0.002")


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report" / WATCH_JSON).read_text())


def test_a_watched_program_behaves_as_without_a_watch(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    alone, seen = python(tmp_path, "train.py", "400"), python(tmp_path, *WATCH, "train.py", "400")
    assert (seen.stdout, seen.returncode) == (alone.stdout, alone.returncode) and alone.returncode == 3
    report = read(tmp_path)
    assert report["samples"] > 1 and report["steps"] > 1 and report["verdict"] != "leak"
    assert "polyline" in (tmp_path / "report" / WATCH_HTML).read_text()


def test_a_leak_fails_where_asked_and_names_holder_and_line(tmp_path: Path) -> None:
    write(tmp_path, TRAIN)
    command = f"{sysconfig.get_path('scripts')}/heapwatch"
    seen = python(tmp_path, command, *WATCH[2:], "--trace", "--fail-on-leak", "-m", "train", "9", "leak")
    report = read(tmp_path)
    assert seen.returncode == 1 and report["verdict"] == "leak", seen.stderr
    assert "module __main__.kept holds" in report["findings"][0]["sources"][0]
    assert re.search(r"\n  train\.kept \(list, [\d,]+ bytearray objects, train\.py:14\) grows", seen.stderr)
    assert any("train.py:14" in line for line in report["newest_allocations"])
    assert not any(command in line for line in report["newest_allocations"])


def test_a_safe_path_stays_as_python_sets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write(library, "NAME = 'library'\n", "its_name.py")
    write(tmp_path, "import its_name, sys\nprint(its_name.NAME, sys.path)\n")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(library))
    assert python(tmp_path, *WATCH, "train.py").stdout == python(tmp_path, "train.py").stdout != ""


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--fail-on-leak",), 1)])
def test_a_watch_that_an_internal_error_ends_fails_where_asked(
    options: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    write(tmp_path, "def update():\n    pass\n", "beside.py")
    # Each sample needs this function.
    write(tmp_path, "import gc, beside\ngc.collect = None\nbeside.update()\nprint('ended')\n")
    seen = python(tmp_path, *WATCH, *options, "--at", "beside:update", "train.py")
    assert (seen.stdout, seen.returncode) == ("ended\n", code), seen.stderr
    assert "internal error in the watch at step 1." in seen.stderr
    assert ("failing because of --fail-on-leak" in seen.stderr) is bool(code)


def test_a_program_without_optimizer_is_watched_by_the_clock_and_kill_leaves_a_report(tmp_path: Path) -> None:
    # The growth has a holder but is not called a leak, because it may be loading.
    write(
        tmp_path,
        """
        import time
        kept = []
        while True:
            kept.append(bytearray(100_000))
            time.sleep(0.01)
        """,
    )
    program = subprocess.Popen([sys.executable, *WATCH[:-1], "0.05", "train.py"], cwd=tmp_path)
    try:
        while not (tmp_path / "report" / WATCH_JSON).exists() or not read(tmp_path)["findings"]:
            time.sleep(0.1)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    report = read(tmp_path)
    assert report["unit"] == "clock ticks (no optimizer steps)" and report["verdict"] == "undecided"
    [finding] = report["findings"]
    assert finding["verdict"] == "growing" and "module __main__.kept holds" in finding["sources"][0]


def test_a_program_whose_main_thread_only_waits_is_watched(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import json, threading, time
        class Cycle:
            def __init__(self):
                self.own = self
            def __del__(self):
                # This registers the thread that samples.
                threading.current_thread()
        kept = []
        def work():
            for _ in range(5_000):
                kept.append(bytearray(100_000))
                Cycle()
                time.sleep(0.01)
                if json.load(open("report/watch.json"))["findings"]:
                    break
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        end = time.monotonic() + 60
        # It is listed until its sample ends.
        while threading.active_count() > 1 and time.monotonic() < end:
            time.sleep(0.01)
        print(threading.enumerate() == [threading.main_thread()])
        """,
    )
    seen = python(tmp_path, *WATCH[:-1], "0.05", "train.py")
    [finding] = read(tmp_path)["findings"]
    assert seen.returncode == 0 and "module __main__.kept holds" in finding["sources"][0], seen.stderr
    # Programs wait for all threads that they find.
    assert seen.stdout == "True\n"


SLOW = """
    import time
    import torch
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.01)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        optimizer.step()
        time.sleep(0.001)
"""


def test_progress_is_shown_once_in_an_interval_and_not_in_a_short_run(tmp_path: Path) -> None:
    write(tmp_path, SLOW)
    start = (
        "import sys; from heapwatch.watch import command, watch; watch._PROGRESS_SECONDS = {}; command.main()"
    )
    lines = re.compile(r"^heapwatch: (?:\d+ of 48|[\d,]+) samples, (?:flat|undecided) so far$", re.MULTILINE)
    seen = python(tmp_path, "-c", start.format(0.5), *WATCH[2:], "train.py")
    seconds = read(tmp_path)["seconds"]
    assert 1 <= len(lines.findall(seen.stderr)) <= seconds / 0.5, seen.stderr
    # Interval and run are much longer in practice.
    seen = python(tmp_path, "-c", start.format(seconds + 600), *WATCH[2:], "train.py")
    assert seen.returncode == 0 and "so far" not in seen.stderr


USUAL = """
    import json, time
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(64, 8)
    data, kept = [], []

    def update(batch=None):
        optimizer.zero_grad()
        model(torch.randn(8, 64) if batch is None else batch).mean().backward()
        optimizer.step()

    def is_seen(verdict):
        return json.load(open("report/watch.json"))["verdict"] == verdict

    def load(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            data.append(torch.ones(25_000))
            time.sleep(0.01)
"""
LOADS_AND_PAUSES = """
    load(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    update()
    load(5)
    while not is_seen("flat"):
        update()
        time.sleep(0.01)
"""
HAS_WORKERS = """
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while not is_seen("flat"):
        for batch in DataLoader(torch.randn(800, 64), 8, num_workers=2):
            update(batch)
"""
LEAKS_IN_ROLLOUTS = """
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    while not is_seen("leak"):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            kept.append(torch.ones(25_000))
            time.sleep(0.05)
        for _ in range(10):
            update()
"""


@pytest.mark.parametrize("program", [LOADS_AND_PAUSES, HAS_WORKERS], ids=["loads and pauses", "has workers"])
def test_a_program_that_loads_before_it_trains_is_flat(program: str, tmp_path: Path) -> None:
    write(tmp_path, USUAL + program)
    seen = python(tmp_path, *WATCH, "--fail-on-leak", "train.py")
    assert seen.returncode == 0 and not read(tmp_path)["findings"], seen.stderr


def test_a_program_whose_optimizer_pauses_for_rollouts_leaks_in_them(tmp_path: Path) -> None:
    write(tmp_path, USUAL + LEAKS_IN_ROLLOUTS)
    seen = python(tmp_path, *WATCH, "--fail-on-leak", "train.py")
    assert seen.returncode == 1, seen.stderr
    assert "module __main__.kept[*] holds" in read(tmp_path)["findings"][0]["sources"][0]


ERRORS = {
    "raises": "def f():\n    raise ValueError('own')\nf()\n",
    "syntax": "x = 1\nx = = 2\n",
    "own hook": """
        import sys, traceback
        sys.excepthook = lambda kind, error, trace: traceback.print_tb(trace)
        raise ValueError("own")
        """,
    "in a child": """
        import os
        if os.fork() == 0:
            raise ValueError("own")
        os.wait()
        raise SystemExit(1)
        """,
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("how", [WATCH[:2], (str(Path(sys.executable).with_name("heapwatch")),)])
def test_an_error_reads_as_without_us(how: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    write(tmp_path, ERRORS[kind])
    alone, seen = python(tmp_path, "train.py"), python(tmp_path, *how, *WATCH[2:], "train.py")
    assert seen.returncode == alone.returncode == 1
    own = [line for line in seen.stderr.splitlines() if not line.startswith("heapwatch:")]
    assert "\n".join(own).replace(f"{tmp_path}/", "") == alone.stderr.rstrip().replace(f"{tmp_path}/", "")
    assert os.listdir(tmp_path / "report")


LASTS = """
    import atexit, os, pickle, sys, threading
    from dataclasses import dataclass

    @dataclass
    class Point:
        x: int

    def copy(name):
        print(name, pickle.loads(pickle.dumps(Point(3))))

    def wait():
        threading.main_thread().join()
        copy("thread")

    spec = __spec__ and (__spec__.name, __spec__.origin)
    print(__name__, spec, __package__, __file__, sys.argv, __builtins__, sys.modules[__name__].Point is Point)
    atexit.register(copy, "atexit")
    threading.Thread(target=wait).start()
"""


@pytest.mark.parametrize("how", [("train.py",), ("-m", "train"), ("-m", "tools"), ("-m", "tools.train")])
def test_a_program_is_the_main_module_to_the_end(how: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, LASTS)
    (tmp_path / "tools").mkdir()
    for name in ("__init__.py", "__main__.py", "train.py"):
        write(tmp_path / "tools", LASTS if name[0] != "_" or "main" in name else "", name)
    alone, seen = python(tmp_path, *how, "a"), python(tmp_path, *WATCH, *how, "a")
    assert (seen.stdout, seen.returncode) == (alone.stdout, alone.returncode), seen.stderr
    assert "thread Point(x=3)" in seen.stdout and "atexit Point(x=3)" in seen.stdout


def test_pytest_may_treat_warnings_as_errors(tmp_path: Path) -> None:
    write(tmp_path, "def test_one():\n    pass\n", "test_one.py")
    seen = python(tmp_path, *WATCH, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_one.py")
    assert seen.returncode == 0 and "1 passed" in seen.stdout, seen.stdout


def test_a_program_may_change_folder_close_its_errors_and_name_a_module_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "def update():\n    pass\n", "beside.py")
    write(
        tmp_path,
        """
        import logging, os, sys
        import beside
        beside.update()
        os.chdir("/")
        sys.stderr.close()
        logging.getLogger("heapwatch").error("of the watch")
        print(sys.argv[1:])
        """,
    )
    seen = python(tmp_path, *WATCH, "--at", "beside:update", "train.py", "a", "--", "--x")
    assert (seen.returncode, seen.stdout) == (0, "['a', '--', '--x']\n"), seen.stderr
    assert read(tmp_path)["samples"] == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "No program given"),
        (("no.py",), "The script no.py does not exist"),
        (("-m", "no.module"), "-m no.module is not a runnable module"),
        # This package has no __main__.
        (("-m", "email"), "-m email is not a runnable module"),
        # This module has no Python code.
        (("-m", "sys"), "-m sys is not a runnable module"),
        (("-m", "this.py"), "-m this.py is not a runnable module"),
        (("--at", "x:y", __file__), "--at=x:y is not a function (there is no module x)"),
        (("--at", "this", __file__), "--at=this is not a function"),
        (("--at", "this.py:c", __file__), "--at=this.py:c is not a function (there is no module this.py)"),
        (("--at", f"{Path(__file__).stem}:write", __file__), "(it is in the program itself"),
        (("--at", "math:pi", __file__), "--at=math:pi is not a function (it is of type float)"),
        (("--at", "fractions:Fraction", __file__), "is not a function (it is of type ABCMeta)"),
        (("--report", f"{__file__}/x", __file__), "The report cannot be written"),
        (("--share", "2", __file__), "--share must be > 0 and at most 1, got 2.0"),
        (("--seconds", "0", __file__), "--seconds must be > 0, got 0.0"),
    ],
)
def test_wrong_use_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["heapwatch", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        command.main()
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in shown and shown.count("\n") == 1
    # No files remain, and the module was not executed.
    assert not os.listdir(tmp_path) and "this" not in sys.modules


def test_at_is_named_as_it_was_typed_and_a_module_that_fails_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "import sys\nsys.exit('own')\n", "ends_at_once.py")
    monkeypatch.syspath_prepend(tmp_path)
    for place, why in (
        ("x:y", "there is no module x"),
        ("ends_at_once:f", "SystemExit: own (ends_at_once.py, line 2)"),
    ):
        with pytest.raises(UsageError, match=re.escape(f"at={place} is not a function ({why})")) as raised:
            Watch(at=place)
        assert str(raised.value).startswith("at=")
