"""The command `reverie-plot`, with its output read back."""

import base64
import csv
import re
import shutil
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pypdf import PdfReader
from rliable import library, metrics

from reverie.commands.comparison import (
    RETURN,
    RETURN_TAGS,
    Axis,
    find_runs,
    find_tag,
    group_runs,
    on_grid,
    read_run,
    with_returns,
)
from reverie.commands.plot import main
from reverie.utils.logging.json_lines import JsonLines, read_lines

SVG = "{http://www.w3.org/2000/svg}"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
# Number of episodes per run.
EPISODES = 20


def write_run(folder: str, lines: Sequence[Mapping[str, float]], settings: str = "seed: 1") -> Path:
    """Write a run folder with its metrics writer."""
    path = Path(folder)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"name: catch\n{settings}\n")
    log = JsonLines(path / "metrics.jsonl")
    log.write(*lines)
    log.close()
    return path


def episodes(last: float, count: int = EPISODES) -> list[dict[str, float]]:
    """Return log lines with returns of 0, except for the last tenth with `last`."""
    first_last = count - count // 10
    return [
        {"step": 100 * (at + 1), "episode/return": last if at >= first_last else 0.0} for at in range(count)
    ]


class Page(HTMLParser):
    """The rows of each table, as text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: list[str] = []
        self.is_in_cell = False
        self.text = path.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.is_in_cell |= tag in ("td", "th")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_in_cell &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.is_in_cell:
            self.tables[-1][-1][-1] += data

    def drawing(self) -> ElementTree.Element:
        """Return the drawing."""
        return ElementTree.fromstring(self.text[self.text.index("<svg") : self.text.index("</svg>") + 6])


def lines_of(drawing: ElementTree.Element, name: str) -> list[np.ndarray]:
    """Return the points (N, 2) of each line with an id."""
    paths = [path for group in drawing.iter(f"{SVG}g") if group.get("id") == name for path in group]
    texts = [path.get("d") or "" for path in paths if path.tag == f"{SVG}path"]
    return [np.array(re.findall(r"-?[\d.]+", text), float).reshape(-1, 2) for text in texts]


@pytest.fixture
def two_groups(empty_folder: Path) -> Path:
    """Return a folder with four seeds scoring 1, 2, 3 and 10, and two of another rate scoring 0 and 1."""
    for seed, score in enumerate((1, 2, 3, 10)):
        # The length of a run does not affect its group.
        steps = 1000 + seed
        # Runs choose their number of threads by themselves.
        settings = f"seed: {seed}\nthreads: {seed % 2}\ntraining: {{total_timesteps: {steps}}}"
        write_run(f"runs/a_{seed}", episodes(score), settings)
    for seed, score in enumerate((0, 1)):
        settings = f"seed: {seed}\ndevice: cpu\noptimizer: {{learning_rate: 0.5}}"
        write_run(f"runs/b_{seed}", episodes(score), settings)
    return Path("runs")


def test_the_table_has_the_scores_of_each_group(two_groups: Path) -> None:
    main([str(two_groups), "out=r.html"])
    page = Page(Path("r.html"))
    scores, runs, settings = page.tables
    assert scores[0] == "group,IQM,95 % interval,mean,min,max,seeds".split(",")
    first, second = scores[1:]
    assert first[0] == "1. optimizer.learning_rate=4e-05 (+1 more): IQM of 4 seeds"
    assert first[1:] == ["2.5", "1 to 10", "4", "1", "10", "4"]
    assert second[0] == "2. optimizer.learning_rate=0.5 (+1 more): mean of 2 seeds"
    assert second[1:] == ["0.5", "0 to 1", "0.5", "0", "1", "2"]
    assert runs[4] == ["1", "3", "10", "2,000", "-", "-", "runs/a_3"]
    assert settings[1:] == [["device", "auto", "cpu"], ["optimizer.learning_rate", "4e-05", "0.5"]]
    assert not {"script", "link", "img"} & set(page.tags)


def test_curves_lie_in_the_picture_where_the_numbers_say(two_groups: Path) -> None:
    main([str(two_groups), "out=r.html"])
    drawing = Page(Path("r.html")).drawing()
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    seeds, groups, bands = (lines_of(drawing, name) for name in ("seed", "group", "band"))
    assert (len(seeds), len(groups), len(bands)) == (6, 2, 2)
    for points in (*seeds, *groups, *bands):
        assert ((points > 0) & (points < (width, height))).all()
    # These are 0 and the last return of the best seed.
    bottom, top = seeds[0][0, 1], seeds[3][-1, 1]
    ends = [(bottom - line[-1, 1]) / (bottom - top) * 10 for line in (*seeds[:4], *groups)]
    assert np.allclose(ends, [1, 2, 3, 10, 2.5, 0.5], atol=1e-3)
    ends = [(bottom - band[:, 1]) / (bottom - top) * 10 for band in bands]
    assert np.allclose([end.max() for end in ends], [10, 1], atol=1e-3)
    for text in drawing.iter(f"{SVG}text"):
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height


def test_the_same_runs_give_the_same_bytes_as_a_page_and_as_a_picture(two_groups: Path) -> None:
    kinds = ("html", "png", "pdf", "svg", "csv")
    for name in ("first", "second"):
        main([str(two_groups), *(f"out={name}.{kind}" for kind in kinds)])
    for kind in kinds:
        assert Path(f"first.{kind}").read_bytes() == Path(f"second.{kind}").read_bytes()
    with Image.open("first.png") as picture:
        assert picture.size == (750, 450)
    assert not list(Path().glob("*.unfinished"))


def test_a_figure_for_a_paper_has_its_title_labels_and_data(two_groups: Path) -> None:
    named = ["title=Catch after 2,000 steps", "labels=ours,a larger rate", "xlabel=actions", "ylabel=$R$"]
    main([str(two_groups), *named, "out=r.pdf", "out=r.svg", "out=r.csv"])
    text = PdfReader("r.pdf").pages[0].extract_text()
    drawn = ElementTree.parse("r.svg").getroot()
    assert {len(lines_of(drawn, name)) for name in ("group", "band")} == {2}
    for name in ("Catch after 2,000 steps", "ours", "a larger rate", "actions", "$R$"):
        assert name in text
    assert "agent steps" not in text and "episode/return" not in text
    main([str(two_groups), *named, "out=page.html"])
    # The page also draws the profile, which has other axes.
    page = Path("page.html").read_text()
    assert page.count(">actions<") == page.count(">share of seeds above<") == 1
    main([str(two_groups), "ylabel=points", "out=r.pdf"])
    text = PdfReader("r.pdf").pages[0].extract_text()
    assert text.count("points") == 1 and "episode/return" not in text
    with Path("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["group", "seed", "agent steps", "value", "low", "high"]
    last = {(row["group"], row["seed"]): row for row in rows}
    ours = last["ours", ""]
    assert [float(ours[name]) for name in ("agent steps", "value", "low", "high")] == [2000, 2.5, 1, 10]
    assert [float(last["ours", f"{seed}"]["value"]) for seed in range(1, 5)] == [1, 2, 3, 10]
    assert (last["a larger rate", "2"]["value"], last["a larger rate", "2"]["low"]) == ("1.0", "")


def test_gap_and_profile_equal_those_of_rliable(two_groups: Path) -> None:
    main([str(two_groups), "target=2", "out=r.html", "draw=profile", "out=r.csv"])
    page = Page(Path("r.html"))
    scores = {"1": np.array([[1.0], [2], [3], [10]]), "2": np.array([[0.0], [1]])}
    assert page.tables[0][0][-2] == "optimality gap to 2"
    for number, row in zip(scores, page.tables[0][1:], strict=True):
        assert float(row[1]) == metrics.aggregate_iqm(scores[number])
        assert float(row[-2]) == metrics.aggregate_optimality_gap(scores[number], gamma=2)
    with Path("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = list(dict.fromkeys(row["group"] for row in rows))
    for name, each in zip(names, scores.values(), strict=True):
        mine = [row for row in rows if row["group"] == name]
        at = np.array([float(row["episode/return (final score)"]) for row in mine])
        assert (at[0], at[-1], len(at)) == (0, 10, 101)
        shares = [library.run_score_deviation(each, score) for score in at]
        assert [float(row["value"]) for row in mine] == shares
        assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in mine)


def test_the_last_evaluation_counts_where_every_run_has_one(empty_folder: Path) -> None:
    evaluations = [{"step": 500, "evaluation/return_mean": 3.0}, {"step": 900, "evaluation/return_mean": 8.0}]
    write_run("runs/1", [*episodes(1.0)[:9], *evaluations])
    main(["runs"])
    page = Page(Path("report.html"))
    assert page.tables[0][1][:2] == ["1. catch: 1 seed", "8"] and "evaluation/return_mean" in page.text
    write_run("runs/2", episodes(1.0), "seed: 1")
    main(["runs"])
    page = Page(Path("report.html"))
    assert page.tables[0][1][:2] == ["1. catch: mean of 2 seeds", "0.5"]
    assert "A seed occurs several times in group 1" in page.text


def test_a_run_that_is_being_written_is_read_to_its_last_whole_line(empty_folder: Path) -> None:
    path = write_run("run", [{"step": 1, "train/kl": 2.0}, {"step": 2, "train/kl": float("nan")}])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/k')
    main(["run", "metric=kl"])
    assert Page(Path("report.html")).tables[1][1] == ["1", "1", "2", "2", "-", "-", "run"]


def test_runs_without_a_finished_episode_are_skipped_by_name_and_the_others_are_drawn(
    two_groups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["runs", "out=without.html"])
    expected = capsys.readouterr()
    write_run("runs/b_begun", [{"step": 1, "a": 1.0}])
    write_run("runs/b_silent", []).joinpath("metrics.jsonl").write_text('{"step": 1, "episode/ret')
    main(["runs", "out=with.html"])
    shown = capsys.readouterr()
    assert shown.out == expected.out.replace("without", "with")
    assert shown.err.splitlines() == [
        "skipped: runs/b_begun/metrics.jsonl has no finished episode yet",
        "skipped: runs/b_silent/metrics.jsonl has no complete line yet",
    ]
    assert Path("with.html").read_bytes() == Path("without.html").read_bytes()


def test_every_run_among_the_raw_data_can_be_drawn_without_a_warning(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    paths = find_runs([str(RESULTS)])
    assert len(paths) > 80
    for path in paths:
        tags = {tag for line in read_lines(path / "metrics.jsonl") for tag in line}
        assert (path / "config.yaml").exists() and not tags.isdisjoint(RETURN_TAGS), path
    # One run of each kind.
    for path in {path.parent: path for path in paths}.values():
        [run] = with_returns([read_run(path)])
        group_runs([run], find_tag(RETURN, [run]), Axis.steps)
    assert capsys.readouterr().err == "" and not caplog.records


def test_one_point_alone_is_drawn(empty_folder: Path) -> None:
    # The run has 8 environments.
    write_run("run", [{"step": 800, "episode/return": float(at)} for at in range(8)])
    main(["run"])
    drawn = [each for each in Page(Path("report.html")).drawing().iter() if each.get("id") == "group"]
    # This is a marker, because the line has no length.
    assert list(drawn[0].iter(f"{SVG}use"))


def test_the_page_of_a_single_run_shows_its_newest_dream(pong_run: Path, empty_folder: Path) -> None:
    main([str(pong_run), "metric=loss/total"])
    page = Path("report.html").read_text()
    [content] = re.findall("<video controls loop src='data:video/mp4;base64,(.*?)'>", page)
    newest = pong_run / "videos" / "open_loop_image_step_000000060.mp4"
    assert base64.b64decode(content) == newest.read_bytes()
    caption = "From top to bottom: the game, its prediction (imagined under the red bar), and the error."
    assert f"<figcaption>{caption}</figcaption>" in page and "media-src data:" in page
    shutil.copytree(pong_run, "other")
    main([str(pong_run), "other", "metric=loss/total", "out=both.html"])
    assert "<video" not in Path("both.html").read_text()


def test_populations_of_other_lengths_are_one_group(empty_folder: Path) -> None:
    for seed, count in enumerate((25, 50)):
        settings = f"seed: {seed}\nworkflow: population\ntraining: {{generations: {count}}}"
        write_run(f"runs/{seed}", episodes(1.0), settings)
    main(["runs"])
    assert Page(Path("report.html")).tables[0][1][0] == "1. catch: mean of 2 seeds"


def test_processes_of_one_run_are_no_seeds(empty_folder: Path) -> None:
    # A run of two processes may be named ranks.
    for name in ("runs/ranks", "runs/ranks/ranks/001"):
        write_run(name, episodes(1.0))
    assert find_runs(["runs"]) == [Path("runs/ranks")]
    assert find_runs(["runs/ranks/ranks/001"]) == [Path("runs/ranks/ranks/001")]


def test_every_axis_is_in_its_unit(empty_folder: Path) -> None:
    # Durations are 10 s, unknown, and 5 s.
    paces = [(100, 10.0, 0), (200, 0.0, 40), (300, 20.0, 80)]
    lines = [{"step": s, "speed/steps_per_second": v, "train/updates": u, "a": s} for s, v, u in paces]
    write_run("run", [*lines[:1], {"step": 150, "a": 1}, *lines[1:]], "seed: 1\nenv: {action_repeat: 4}")
    run = read_run(Path("run"))
    places = {axis.name: run.points("a", axis)[0].tolist() for axis in Axis}
    assert places["steps"] == [100, 150, 200, 300] and places["frames"] == [400, 600, 800, 1200]
    assert places["updates"] == [0, 20, 40, 80]
    assert places["wall"] == pytest.approx([10 / 3600, 10 / 3600, 10 / 3600, 15 / 3600])
    assert run.end(Axis.wall) == pytest.approx(15 / 3600)


def test_hours_are_those_that_are_logged(empty_folder: Path) -> None:
    lines = [{"step": step, "speed/steps_per_second": 10.0} for step in (9000, 9100, 9200)]
    assert read_run(write_run("run", lines)).end(Axis.wall) == pytest.approx(30 / 3600)


def test_a_grid_has_the_mean_of_each_part() -> None:
    long = np.array([np.arange(30.0), 2 * np.arange(30.0)])
    short = np.array([[0.0, 1.0, 2.0, 27.0, 28.0, 29.0], [1.0, 3.0, 5.0, 8.0, 8.0, 8.0]])
    # 36 values of 2 seeds: 9 parts of 29 / 9.
    grid, rows = on_grid([long, short])
    assert np.allclose(grid, 29 / 18 * np.arange(1, 18, 2))
    # The values between 3 and 8 are interpolated.
    assert np.allclose(rows[0], [3, 10, 16, 22, 29, 36, 42, 48, 55])
    assert np.allclose(rows[1], np.linspace(3, 8, 9))


def test_few_values_stay_at_their_positions() -> None:
    first, second = np.array([[1.0, 3.0], [10.0, 30.0]]), np.array([[2.0, 4.0], [5.0, 7.0]])
    grid, rows = on_grid([first, second])
    assert grid.tolist() == [1, 2, 3, 4]
    assert np.array_equal(rows, [[10, 20, 30, np.nan], [np.nan, 5, 6, 7]], equal_nan=True)


def test_a_seed_ends_where_its_values_do() -> None:
    long, short = np.array([np.arange(24.0)] * 2), np.array([[4.0, 4.5], [7.0, 9.0]])
    _, rows = on_grid([long, short, long])
    assert np.flatnonzero(~np.isnan(rows[1])).tolist() == [1] and rows[1][1] == 8


def test_runs_are_found_by_folder_pattern_and_once(empty_folder: Path) -> None:
    for name in ("runs/x=1,y=2", "runs/x=2,y=2", "other/1"):
        write_run(name, episodes(1.0))
    assert [str(path) for path in find_runs(["other", "runs/x=2*", "runs", "runs/x=1,y=2"])] == [
        "other/1",
        "runs/x=2,y=2",
        "runs/x=1,y=2",
    ]
    # Names with = are not settings.
    main(["runs/x=1,y=2", "runs/x=[2]*"])
    assert len(Page(Path("report.html")).tables[1]) == 3


def test_names_are_text_and_nothing_else(empty_folder: Path) -> None:
    write_run("runs/1", episodes(1.0), "seed: 1\nmodel: {init: '<b>$x_1$'}")
    write_run("runs/2", episodes(1.0), "seed: 1\nmodel: {init: '$\\frac{$'}")
    main(["runs", "out=r.html", "out=r.png"])
    page = Page(Path("r.html"))
    assert page.tables[0][1][0] == "1. model.init=<b>$x_1$: 1 seed"


def test_metric_list_lists_every_tag(two_groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run("runs/more", [{"step": 1, "train/loss/decoder/image": 2.0}])
    # This existing file must not be overwritten.
    Path("report.html").write_text("of others")
    main(["runs", "metric=list"])
    assert capsys.readouterr().out == "episode/return\ntrain/loss/decoder/image\n"
    main(["runs/more", "metric=loss/image", "out=r.html"])
    assert "train/loss/decoder/image" in Page(Path("r.html")).text


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ([], "no runs given. Write reverie-plot experiments/<run> (see --help)."),
        (["nowhere"], "nowhere does not exist. Pass only paths of run folders"),
        (["nowhere/*"], "nowhere/* does not exist."),
        (["empty"], "empty contains no run (no metrics.jsonl)."),
        (["bare"], "bare is not a run folder (no config.yaml)."),
        (["silent"], "silent/metrics.jsonl has no complete line yet."),
        (["wrong"], "Line 1 of wrong/metrics.jsonl was not written by Reverie."),
        (
            ["runs", "metric=episode/retrn"],
            "metric=episode/retrn is not a tag of these runs. Did you mean `episode/return`? metric=list",
        ),
        (["two", "metric=a"], "metric=a matches several tags: train/a, world/a. metric=list lists all."),
        (["runs", "metric=nothing"], "metric=nothing is not a tag of these runs. metric=list lists all."),
        (
            ["runs", "population"],
            "no tag of evaluation/return_mean, episode/return, population/fitness_best is in all runs.",
        ),
        (["more"], "more/metrics.jsonl has no finished episode yet. Wait for the run's first metrics, or"),
        (["runs", "more", "metric=a"], "runs/a_0 has no finite a so far"),
        (
            ["runs", "x=updates"],
            "runs/a_0 has no finite train/updates so far, so x=updates cannot be plotted",
        ),
        (["nan", "metric=a"], "nan has no finite a so far, so metric=a cannot be plotted."),
        (["runs", "x=cpu"], "x=cpu: x must be one of steps, updates, frames, wall"),
        (["runs", "metrik=a"], "metrik= is not a setting of reverie-plot. Did you mean `metric`?"),
        (["runs", "--fast"], "--fast is not a setting of reverie-plot"),
        (["runs", "out=r.gif"], "out=r.gif must be a file that ends in .html, .png, .pdf, .svg or .csv."),
        (["runs", "draw=bars"], "draw=bars: draw must be one of curves, profile"),
        (["runs", "target=high"], "target=high: target must be a number"),
        (
            ["runs", "labels=ours"],
            "labels=ours has 1 name for 2 groups (optimizer.learning_rate=4e-05 (+1 more): IQM of 4 seeds; ",
        ),
        (["runs", "out=no/r.html"], "out=no/r.html cannot be written: no is not a folder."),
        (["runs", f"out={'r' * 300}.html"], "cannot be written: File name too long."),
        (["runs", "out=lineage.html"], "lineage.html already exists and was not written by reverie-plot."),
        (["many"], "a plot can show at most 8 groups (got 9). Pass fewer runs."),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    typed: list[str], message: str, two_groups: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    write_run("bare", episodes(1.0)).joinpath("config.yaml").unlink()
    write_run("silent", []).joinpath("metrics.jsonl").write_text('{"step": 1, "a"')
    write_run("wrong", []).joinpath("metrics.jsonl").write_text("hello\n")
    write_run("more", [{"step": 1, "a": 1.0}])
    write_run("two", [{"step": 1, "train/a": 1.0, "world/a": 1.0}])
    write_run("population", [{"step": 1, "population/fitness_best": 1.0}])
    Path("lineage.html").write_text("<title>Population: run</title>")
    write_run("nan", [{"step": 1, "a": float("inf")}])
    for seed in range(9 if typed == ["many"] else 0):
        write_run(f"many/{seed}", episodes(1.0), f"seed: 1\nmodel: {{units: {64 + seed}}}")
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main(typed)
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert message in shown.err and shown.err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
