"""The report of a population, from real files of real generations."""

import base64
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reverie.orchestration.population.lineage import lineage_lines
from reverie.orchestration.population.report import save_population_report
from reverie.utils.errors import UserError
from reverie.utils.logging.json_lines import JsonLines
from reverie.workflows.population.config import PopulationConfig
from reverie.workflows.population.evolution import INITIAL, Origin, evolve


def lineage_of(run_dir: Path) -> JsonLines:
    return JsonLines(run_dir / "lineage.jsonl")


def evolved(run_dir: Path, size: int, generations: int) -> None:
    """Write the lineage of a population that evolves a number towards 0."""
    run_dir.mkdir(exist_ok=True)
    config, generator = PopulationConfig(size=size), torch.Generator().manual_seed(1)
    parameters = {"weight": torch.linspace(5, 9, size)[:, None, None].clone()}
    origins, lineage = [INITIAL] * size, lineage_of(run_dir)
    for generation in range(generations):
        fitness = (-parameters["weight"].abs()).flatten().tolist()
        lineage.write(*lineage_lines(1000 * (generation + 1), generation, fitness, origins))
        if config.evolves:
            made = evolve(parameters, fitness, config, generator)
            parameters, origins = made.parameters, made.origins
        else:
            origins = [Origin((0,), ("learner",))]
    lineage.close()


def pictures(page: str) -> list[np.ndarray]:
    found = re.findall(r"src='data:image/png;base64,([^']+)'", page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB")) for each in found]


def has_colour(picture: np.ndarray, colour: str) -> bool:
    return bool((picture == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).any())


def tables(page: str) -> list[list[list[str]]]:
    """Return the cells of each table, without headings."""
    bodies = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    return [
        [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>.*</tr>", body)] for body in bodies
    ]


def test_the_page_tells_the_best_member_and_what_operators_led_to(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    evolved(run_dir, size=16, generations=25)
    path = save_population_report(run_dir, 3)
    assert path == run_dir / "report.html"
    assert {each.name for each in run_dir.iterdir()} == {"lineage.jsonl", "report.html"}
    page = path.read_text(encoding="utf-8")
    assert re.search(r"<strong>-[\d.e-]+ \(generation \d+, member \d+\)</strong>best fitness ever", page)
    for value, name in (("25", "generations"), ("16", "members"), ("25,000", "agent steps")):
        assert f"<strong>{value}</strong>{name}" in page
    rows = {first: rest for first, *rest in tables(page)[1]}
    assert rows["learner"][0] == rows["injection"][0] == "23"
    assert sum(int(row[0]) for row in rows.values()) == 23 * 16
    assert sum(int(row[1].split(" ")[0]) for row in rows.values()) == 23 * 3
    for row in rows.values():
        assert int(row[0]) == sum(int(each.split(" ")[0]) for each in row[1:])


def test_the_page_opens_offline_and_runs_nothing(tmp_path: Path) -> None:
    evolved(tmp_path / "<b>run", size=4, generations=4)
    page = save_population_report(tmp_path / "<b>run", 1).read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "<script" not in page and "<b>run" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)


@pytest.mark.parametrize(("size", "generations"), [(16, 25), (10, 100), (2, 3), (1, 1)])
def test_the_picture_shows_every_curve_and_the_ancestry_leads_from_the_best_to_the_beginning(
    tmp_path: Path, size: int, generations: int
) -> None:
    evolved(tmp_path, size, generations)
    page = save_population_report(tmp_path, PopulationConfig(size=size).num_elites).read_text("utf-8")
    [fitness] = pictures(page)
    drawn = [has_colour(fitness, colour) for colour in ("#1f2430", "#0072b2", "#d55e00", "#009e73")]
    assert all(drawn) or generations == 1, drawn
    ancestors = tables(page)[0]
    [(best, member)] = re.findall(r"\(generation (\d+), member (\d+)\)", page)
    spans = [[int(number) for number in row[0].split(" to ")] for row in ancestors]
    assert (spans[0][-1], ancestors[0][1]) == (int(best), member)
    assert [end for *_, end in spans[1:]] == [begin - 1 for begin, *_ in spans[:-1]] and spans[-1][0] == 0
    assert ancestors[-1][2:4] == ["initial", ""]


def test_members_of_one_origin_in_successive_generations_are_one_row_of_the_ancestry(tmp_path: Path) -> None:
    origins = [INITIAL, Origin((0, 1), ("crossover", "mutation")), *[Origin((1,), ("elite",))] * 3]
    lineage = lineage_of(tmp_path)
    for generation, origin in enumerate(origins):
        other = Origin((0,), ("learner",)) if generation else INITIAL
        lineage.write(*lineage_lines(generation, generation, [0.0, float(generation)], [other, origin]))
    lineage.close()
    assert tables(save_population_report(tmp_path, 1).read_text("utf-8"))[0] == [
        ["2 to 4", "1", "elite", "1", "4"],
        ["1", "1", "crossover + mutation", "0, 1", "1"],
        ["0", "0", "initial", "", "0"],
    ]


def test_members_without_a_number_are_counted_and_left_out(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path)
    lineage.write(*lineage_lines(10, 0, [math.nan, math.inf, math.nan], [INITIAL] * 3))
    lineage.close()
    page = save_population_report(tmp_path, 1).read_text(encoding="utf-8")
    assert "<strong>none</strong>best fitness ever" in page and "3 not drawn" in page
    lineage = lineage_of(tmp_path)
    lineage.write(*lineage_lines(20, 1, [1.0, 2.5, math.nan], [Origin((i,), ("learner",)) for i in range(3)]))
    lineage.close()
    page = save_population_report(tmp_path, 1).read_text(encoding="utf-8")
    assert "<strong>2.5 (generation 1, member 1)</strong>best fitness ever" in page and "4 not drawn" in page
    assert "<strong>1.75</strong>mean fitness of the last generation" in page


def test_a_name_of_an_operator_is_text_and_no_markup(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path)
    for generation in range(4):
        origin = Origin((0,), ("$<i>x",)) if generation else INITIAL
        lineage.write(*lineage_lines(generation, generation, [1.0], [origin]))
    lineage.close()
    page = save_population_report(tmp_path, 1).read_text(encoding="utf-8")
    assert "$&lt;i&gt;x" in page and "<i>" not in page


def test_an_unreadable_lineage_leaves_the_earlier_report(tmp_path: Path) -> None:
    evolved(tmp_path, size=3, generations=3)
    before = save_population_report(tmp_path, 1).read_bytes()
    with (tmp_path / "lineage.jsonl").open("a") as file:
        file.write("null\n")
    with pytest.raises(UserError, match="Line 10 of"):
        save_population_report(tmp_path, 1)
    assert (tmp_path / "report.html").read_bytes() == before
