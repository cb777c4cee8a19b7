"""`scripts/benchmark.py`: measure, print the table, and write the raw data."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from heapwatch.counters.glibc import keep_heap

from benchmarks.suite.bench import Bench, BenchConfig
from benchmarks.suite.load import read_load
from benchmarks.suite.machine import machine_facts
from benchmarks.suite.results import Result, table
from benchmarks.suite.suite import ROWS, chosen_rows
from reverie.commands.options import own_settings
from reverie.utils.errors import exit_on_user_error

_PREFIX = "bench."
_USAGE = """\
Compare Reverie's speed with its peers and the machine's limits: scripts/benchmark.py [key=value ...]

  python scripts/benchmark.py bench.rows=update_size1m          one row
  python scripts/benchmark.py bench.rows=policy_step,replay     rows by name prefix
  python scripts/benchmark.py bench.out=<file> device=cuda      all rows on a GPU, also saved as JSON

Other settings are those of a run (scripts/train.py --help).

"""


@exit_on_user_error()
def main(arguments: list[str] | None = None) -> None:
    """Run the suite. Exit with 2 if the arguments are invalid."""
    typed_here = sys.argv[1:] if arguments is None else arguments
    rows = fill(", ".join(ROWS), width=100, initial_indent="  ", subsequent_indent="  ")
    usage = f"{_USAGE}Rows:\n{rows}\n\n"
    settings, overrides = own_settings(BenchConfig, typed_here, "benchmark", usage, _PREFIX)
    names = chosen_rows(settings.rows)
    bench = Bench(settings, overrides)
    # Invalid settings of the run are rejected before any measurement.
    bench.compose()
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    # Training runs call this too.
    keep_heap()
    run_rows(bench, names, typed_here)


def run_rows(bench: Bench, names: list[str], command: list[str]) -> None:
    """Measure the rows in order. Print each and update `bench.out` as soon as it is finished."""
    before = read_load()
    results: list[Result] = []
    for name in names:
        found = ROWS[name](bench, name)
        print(table(found), flush=True)
        results += found
        if bench.settings.out is not None:
            others_cpu = read_load().others_since(before)
            report = _report(bench, command, results, others_cpu)
            Path(bench.settings.out).write_text(json.dumps(report, indent=1) + "\n")
    if len(names) > 1:
        print("\n" + table(results))
    for notice in bench.notices:
        print(notice)


def _report(bench: Bench, command: list[str], results: list[Result], others_cpu: float) -> dict[str, Any]:
    """Return all results as JSON values."""
    return {
        "command": command,
        "quick": bench.settings.quick,
        "machine": machine_facts(bench.device),
        "threads": torch.get_num_threads(),
        "others_cpu": round(others_cpu, 3),
        "rates": asdict(bench.rates()),
        "notices": bench.notices,
        "rows": [asdict(result) for result in results],
    }
