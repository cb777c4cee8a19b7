"""The lineage of members: `lineage.jsonl`, one line for each member of each generation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checkpoints.run_folder import LINEAGE_FILE
from ...utils.durable_io import parse_json
from ...utils.errors import UserError
from ...utils.logging import JsonLines, malformed_line_error, whole_lines
from ...workflows.population import Origin

_NAMES_OF_NUMBERS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class LineageMember:
    """One line: a member of a generation."""

    step: int
    """Agent steps at the end of the generation."""

    fitness: float
    """Its mean return in that generation; may be NaN or infinite."""

    origin: Origin
    """Its origin in the previous generation."""


class Lineage:
    """Writes `lineage.jsonl`; lines have left the process when the call returns.

    Args:
        run_dir: The run folder, which exists.
        resume_step: Agent steps of the checkpoint that the run continues; lines of later steps are dropped.

    Raises:
        UserError: If `lineage.jsonl` has other content; nothing is written then.
    """

    def __init__(self, run_dir: Path, resume_step: int | None = None) -> None:
        self._lines = JsonLines(run_dir / LINEAGE_FILE, resume_step)

    def generation(
        self, step: int, generation: int, fitness: Sequence[float], origins: Sequence[Origin]
    ) -> None:
        """Write a line for each member.

        Args:
            step: Agent steps at the end of the generation.
            generation: Counted from 0.
            fitness: Fitness of each member in this generation.
            origins: Origin of each member of this generation; `INITIAL` for those of generation 0.

        Raises:
            ValueError: If the numbers of origins and of fitnesses differ; nothing is written then.
        """
        lines = [
            {
                "step": step,
                "generation": generation,
                "member": member,
                "fitness": float(each),
                "parents": list(origin.parents),
                "operators": list(origin.operators),
            }
            for member, (each, origin) in enumerate(zip(fitness, origins, strict=True))
        ]
        self._lines.write(*lines)

    def flush(self) -> None:
        """Bring the lines to disk, where a loss of power leaves them."""
        self._lines.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._lines.close()


def read_lineage(path: Path) -> list[list[LineageMember]]:
    """Return the members of each generation, both in order.

    A last generation that a crash left unfinished is left out.

    Raises:
        UserError: If the file is missing or empty, if its first generations are missing, or if a line is not
            the one that follows the line before.
    """
    generations: list[list[LineageMember]] = []
    if os.path.lexists(path):
        for number, line in whole_lines(path):
            try:
                parsed = parse_json(line)
                if number == 1 and parsed["generation"] > 0:
                    raise UserError(
                        f"{path} begins with generation {parsed['generation']}: the lines before it are "
                        "missing. Put the whole file back."
                    )
                _add_member(parsed, generations)
            except UserError:
                raise
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise malformed_line_error(path, number) from error
    if len(generations) > 1 and len(generations[-1]) < len(generations[0]):
        generations.pop()
    if not generations:
        raise UserError(f"{path} holds no generation. Train a population until its first one has ended.")
    return generations


def _add_member(line: dict[str, Any], generations: list[list[LineageMember]]) -> None:
    """Add a line's member.

    Raises:
        ValueError: If the line is of other types than `Lineage` writes, or out of order.
        TypeError: Likewise.
        KeyError: Likewise.
    """
    generation, member, fitness = line["generation"], line["member"], line["fitness"]
    size, last = (len(generations[0]), len(generations[-1])) if generations else (0, 0)
    if (generation, member) == (len(generations), 0) and last == size:
        generations.append([])
    elif (generation, member) != (len(generations) - 1, last) or (generation > 0 and last == size):
        raise ValueError("out of order")
    parents, operators = tuple(line["parents"]), tuple(line["operators"])
    num_before = len(generations[-2]) if len(generations) > 1 else 0
    if not (
        type(line["step"]) is int
        and 0 <= line["step"] < 2**63
        and (isinstance(fitness, float) or fitness in _NAMES_OF_NUMBERS)
        and all(type(parent) is int and 0 <= parent < num_before for parent in parents)
        and bool(parents) == (generation > 0)
        and operators
        and all(isinstance(name, str) for name in operators)
    ):
        raise ValueError("not as it is written")
    generations[-1].append(LineageMember(line["step"], float(fitness), Origin(parents, operators)))
