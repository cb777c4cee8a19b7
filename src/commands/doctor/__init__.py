"""`reverie-doctor`: can this machine train, and what to do where it cannot. It changes nothing."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...utils.errors import FlagParser, exit_on_user_error
from .finding import Finding as Finding
from .finding import Verdict as Verdict
from .machine import check_disk, check_memory, check_shared_memory
from .machine import judge_disk as judge_disk
from .machine import judge_memory as judge_memory
from .machine import judge_shared_memory as judge_shared_memory
from .software import check_atari, check_gpu, check_gymnasium, check_packages, check_torch
from .software import judge_missing_gpu as judge_missing_gpu
from .software import judge_packages as judge_packages
from .software import judge_python as judge_python
from .software import judge_system as judge_system


def diagnose() -> list[Finding]:
    """Make every check, in the order of the report."""
    return [
        judge_system(sys.platform),
        judge_python(sys.version_info[:2]),
        check_packages(),
        check_torch(),
        check_gpu(),
        check_atari(),
        check_gymnasium(),
        check_disk(),
        check_shared_memory(),
        check_memory(),
    ]


def report(findings: list[Finding], console: Console) -> int:
    """Print the table, then each fix on a line of its own so that it can be pasted; return the exit code."""
    table = Table("check", "verdict", "found")
    for finding in findings:
        verdict = Text(finding.verdict.name, finding.verdict.value)
        table.add_row(finding.subject, verdict, Text(finding.found))
    console.print(table)
    for finding in findings:
        if finding.fix:
            verdict = (finding.verdict.name, finding.verdict.value)
            console.print(Text.assemble(verdict, f" {finding.subject}: {finding.fix}"), soft_wrap=True)
    return int(any(finding.verdict is Verdict.FAIL for finding in findings))


@exit_on_user_error()
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `reverie-doctor`; exit code 1 if a check failed, 2 if anything but --help is asked."""
    parser = FlagParser(
        description="Check whether this machine can train, and say what to do where it cannot.",
        epilog="Exit code: 1 if a check failed, else 0. Nothing is changed, and there are no settings.",
        allow_abbrev=False,
    )
    parser.parse_args(arguments)
    return report(diagnose(), Console(highlight=False))
