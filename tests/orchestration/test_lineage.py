"""The lineage is written as it happens, survives crashes, and is read back or rejected with a reason."""

import json
import math
from pathlib import Path

import pytest

from reverie.orchestration.population.lineage import (
    LineageMember,
    ancestry,
    best_place,
    lineage_lines,
    outcomes,
    read_lineage,
)
from reverie.utils.errors import UserError
from reverie.utils.logging.json_lines import JsonLines
from reverie.workflows.population.evolution import INITIAL, Origin

ELITE, LEARNER, INJECTED = Origin((1,), ("elite",)), Origin((0,), ("learner",)), Origin((0,), ("injection",))
CHILD = Origin((2, 0), ("crossover", "mutation"))


def write(run_dir: Path, *fitness: list[float], resume_step: int | None = None, first: int = 0) -> None:
    """Write generations of three members, in which generation g has the steps 100 * (g + 1)."""
    file = JsonLines(run_dir / "lineage.jsonl", resume_step)
    for generation, each in enumerate(fitness, start=first):
        origins = [LEARNER, ELITE, CHILD] if generation else [INITIAL] * 3
        file.write(*lineage_lines(100 * (generation + 1), generation, each, origins))
    file.close()


def test_a_line_holds_who_a_member_is_and_where_it_came_from(tmp_path: Path) -> None:
    write(tmp_path, [1.0, 2.0, 3.0], [4.0, math.nan, -math.inf])
    lines = [json.loads(line) for line in (tmp_path / "lineage.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert lines[1] == {
        "step": 100,
        "generation": 0,
        "member": 1,
        "fitness": 2.0,
        "parents": [],
        "operators": ["initial"],
    }
    assert lines[5] == {
        "step": 200,
        "generation": 1,
        "member": 2,
        "fitness": "-Infinity",
        "parents": [2, 0],
        "operators": ["crossover", "mutation"],
    }
    assert lines[4]["fitness"] == "NaN"


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, [1.0, 2.0, 3.0], [4.0, math.inf, -math.inf])
    assert read_lineage(tmp_path / "lineage.jsonl") == [
        [LineageMember(100, fitness, INITIAL) for fitness in (1.0, 2.0, 3.0)],
        [
            LineageMember(200, 4.0, LEARNER),
            LineageMember(200, math.inf, ELITE),
            LineageMember(200, -math.inf, CHILD),
        ],
    ]


def test_a_resumed_run_writes_the_generations_after_its_checkpoint_again(tmp_path: Path) -> None:
    write(tmp_path, [1.0] * 3, [2.0] * 3, [3.0] * 3)
    with (tmp_path / "lineage.jsonl").open("a") as file:
        file.write('{"step": 400, "generation"')
    write(tmp_path, [5.0] * 3, resume_step=200, first=2)
    read = read_lineage(tmp_path / "lineage.jsonl")
    assert [[member.fitness for member in members] for members in read] == [[1.0] * 3, [2.0] * 3, [5.0] * 3]
    assert [path.name for path in tmp_path.iterdir()] == ["lineage.jsonl"]


@pytest.mark.parametrize("letters", [1, 60, 200])
def test_a_last_generation_that_a_crash_left_unfinished_is_not_read(tmp_path: Path, letters: int) -> None:
    write(tmp_path, [1.0] * 3, [2.0] * 3)
    path = tmp_path / "lineage.jsonl"
    path.write_bytes(path.read_bytes()[:-letters])
    assert len(read_lineage(path)) == 1


GOOD = {"step": 200, "generation": 1, "member": 0, "fitness": 1.0, "parents": [0], "operators": ["elite"]}


@pytest.mark.parametrize(
    "line",
    [
        "null",
        "[" * 100_000,
        "{}",
        json.dumps(GOOD | {"member": 1}),
        json.dumps(GOOD | {"generation": 2}),
        json.dumps(GOOD | {"generation": 0, "member": 4, "parents": []}),
        json.dumps(GOOD | {"parents": [3]}),
        json.dumps(GOOD | {"parents": [-1]}),
        json.dumps(GOOD | {"parents": []}),
        json.dumps(GOOD | {"operators": []}),
        json.dumps(GOOD | {"operators": [1]}),
        json.dumps(GOOD | {"fitness": "high"}),
        json.dumps(GOOD | {"step": "many"}),
        json.dumps(GOOD | {"step": 10**400}),
    ],
    ids=lambda line: line[:150],
)
def test_a_line_that_does_not_follow_is_named_with_its_file(tmp_path: Path, line: str) -> None:
    write(tmp_path, [1.0] * 3)
    path = tmp_path / "lineage.jsonl"
    whole = path.read_text()
    path.write_text(f"{whole}{json.dumps(GOOD)}\n")
    assert read_lineage(path)[0][0].fitness == 1.0, "the line that the others are changed from is good"
    path.write_text(f"{whole}{line}\n")
    with pytest.raises(UserError) as told:
        read_lineage(path)
    assert str(told.value) == f"Line 4 of {path} was not written by Reverie. Delete this line and try again."


def test_a_generation_follows_only_a_whole_one(tmp_path: Path) -> None:
    write(tmp_path, [1.0] * 3, [2.0] * 3, [3.0] * 3)
    path = tmp_path / "lineage.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]))
    with pytest.raises(UserError, match="Line 6 of"):
        read_lineage(path)


def test_a_lineage_whose_beginning_is_lost_is_said_to_be_so(tmp_path: Path) -> None:
    write(tmp_path, [1.0] * 3, [2.0] * 3)
    path = tmp_path / "lineage.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[3:]))
    with pytest.raises(UserError, match="starts with generation 1: earlier lines are missing"):
        read_lineage(path)


def test_a_run_without_a_generation_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not contain a complete generation"):
        read_lineage(tmp_path / "lineage.jsonl")
    write(tmp_path)
    with pytest.raises(UserError, match="does not contain a complete generation"):
        read_lineage(tmp_path / "lineage.jsonl")


def generation(*fitness: float) -> list[LineageMember]:
    """Return three members: the learner, an elite from member 1, and a child or a copy of the learner."""
    origins = (LEARNER, ELITE, INJECTED if fitness[2] == 0 else CHILD)
    return [LineageMember(0, each, origin) for each, origin in zip(fitness, origins, strict=True)]


def test_the_best_ever_is_the_first_of_the_fittest_and_never_one_without_a_number() -> None:
    run = [generation(1.0, math.nan, 2.0), generation(5.0, math.inf, 2.0), generation(3.0, 5.0, 2.0)]
    assert best_place(run) == (1, 0)
    assert best_place([generation(math.nan, math.inf, -math.inf)]) is None


def test_the_ancestry_follows_first_parents_to_the_beginning() -> None:
    beginning = [LineageMember(0, 0.0, INITIAL)] * 3
    run = [beginning, generation(1.0, 1.0, 1.0), generation(1.0, 1.0, 1.0), generation(1.0, 1.0, 0)]
    assert ancestry(run, (2, 2)) == [(2, 2), (1, 2), (0, 2)]
    assert ancestry(run, (3, 2)) == [(3, 2), (2, 0), (1, 0), (0, 0)]
    assert ancestry(run, (0, 1)) == [(0, 1)]


def test_members_are_counted_by_how_they_came_about_and_what_became_of_them() -> None:
    beginning = [LineageMember(0, 0.0, INITIAL)] * 3
    run = [beginning, generation(1.0, 2.0, 3.0), generation(1.0, 2.0, 0), generation(9.0, 9.0, 0)]
    found = {
        operators: (each["elite"], each["parent"], each["discarded"])
        for operators, each in outcomes(run, 1).items()
    }
    # The child is fittest in generation 1, the elite in generation 2. Only 0 and 1 have children.
    assert found == {
        "learner": (0, 2, 0),
        "elite": (1, 1, 0),
        "crossover + mutation": (1, 0, 0),
        "injection": (0, 0, 1),
    }
    assert outcomes(run[:2], 1) == {}
