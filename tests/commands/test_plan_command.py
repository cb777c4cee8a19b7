"""`reverie-plan` creates no files, and a run that cannot fit is refused with alternatives that fit."""

import json
import re
from pathlib import Path

import psutil
import pytest
import torch

from reverie.commands.command_line import run_from_command_line
from reverie.commands.plan import main
from reverie.commands.train import train
from reverie.planning import plan as plan_module
from reverie.planning.constants import HOST_SHARE
from reverie.planning.suggestions import model_sizes

from ..runs.helpers import CARTPOLE, error_of, start
from ..runs.warm import Server

pytestmark = pytest.mark.usefixtures("empty_folder")
GIB = 2**30
# This is 12 TB.
TOO_LARGE = ("buffer.capacity=1000000000", "buffer.memory_budget_gib=1000000")
CPU = "device=cpu"


def limit_memory(monkeypatch: pytest.MonkeyPatch, spare_gib: float, ranks: int = 1) -> None:
    """Limit the memory to `spare_gib` above this process's usage (it depends on earlier tests)."""

    def limit() -> int:
        planned_bytes = ranks * psutil.Process().memory_info().rss + spare_gib * GIB
        return int(planned_bytes / HOST_SHARE)

    monkeypatch.setattr(plan_module, "memory_limit_bytes", limit)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    main([*arguments, "plan.format=json"])
    return json.loads(capsys.readouterr().out)


def plan_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return error_of(capsys, lambda: main(arguments))


def train_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return error_of(capsys, lambda: run_from_command_line(train, arguments))


def test_a_table_is_printed_for_each_resource_and_nothing_is_created(
    empty_folder: Path, server: Server
) -> None:
    shown = server.run("plan", CPU, "experiment=dreamer_catch")
    assert (shown.code, shown.error) == (0, "")
    for word in ("host RAM", "disk", "replay", "activations of the controller", "checkpoints", "estimated"):
        assert word in shown.out
    assert shown.out.count("total") == 2
    assert re.match(r"Fits: host RAM [\d.]+ [GM]iB, disk [\d.]+ [GM]iB\.\ndreamer_catch: model ", shown.out)
    # Bytes are only in the JSON.
    assert not re.search(r"\d,\d{3},\d{3}(?! parameters)", shown.out)
    assert not list(empty_folder.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the limit of a GPU is known")
def test_a_plan_for_a_gpu_without_one_reports_that_the_limit_is_unknown(server: Server) -> None:
    shown = server.run("plan", "device=cuda", "experiment=dreamer_catch").out
    assert re.match(r"Fits: host RAM [\d.]+ GiB, GPU memory [\d.]+ GiB \(limit unknown\), disk ", shown)


def test_json_is_one_flat_object_whose_rows_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "device=cuda", "experiment=dreamer_ataripong")
    assert all(not isinstance(value, dict | list) for value in found.values())
    assert (found["device"], found["model"], found["precision"]) == ("cuda", "size1m", "float32")
    for resource in ("host_ram", "gpu_memory", "disk"):
        sizes = {key: value for key, value in found.items() if key.startswith(f"{resource}.")}
        total, limit = sizes.pop(f"{resource}.total_bytes"), sizes.pop(f"{resource}.limit_bytes")
        # There is one rank.
        assert sizes.pop(f"{resource}.shared_bytes") == total
        assert total == sum(int(str(size)) for size in sizes.values()) and len(sizes) > 2
        assert limit is None or isinstance(limit, int)


@pytest.mark.parametrize(
    "mistake",
    [
        ["training.batchsize=3"],
        ["model=size3m"],
        ["training.batch_size=many"],
        ["env.game=ponk"],
        ["buffer.capacity=10"],
        ["buffer"],
    ],
)
def test_a_mistake_in_the_run_gets_the_message_of_train(
    mistake: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan_error(capsys, CPU, *mistake) == train_error(capsys, CPU, *mistake)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "plan.fromat=json",
            "plan.fromat=json is not a setting of reverie-plan (plan.format=, plan.fit_gib=, "
            "plan.ranks=, plan.machines=). Did you",
        ),
        ("plan.format", "plan.format is not a setting of reverie-plan"),
        ("plan.format=yaml", "plan.format must be one of table, json, got `yaml`"),
        ("plan.fit_gib=0", "plan.fit_gib must be > 0, got 0.0"),
        ("plan.fit_gib=1e300", "plan.fit_gib must be at most 1e+30, got 1e+300"),
        ("plan.fit_gib=much", "plan.fit_gib must be a number or null, got `much`. Omit it."),
        ("--multirun", "unknown flag --multirun"),
        ("resume=runs/a", "reverie-plan does not support resume="),
        ("device=cpu plan.fit_gib=6", "plan.fit_gib=6 needs device=cuda"),
        ("plan.ranks=0", "plan.ranks must be at least 1, got 0"),
        (
            "plan.ranks=4 plan.machines=3",
            "plan.ranks=4 cannot be divided evenly among plan.machines=3. Set plan.ranks to a multiple of 3.",
        ),
        (
            "device=cpu experiment=dreamer_catch env.num_envs=4 plan.ranks=3",
            "env.num_envs=4 cannot be divided evenly among 3 ranks. Set env.num_envs=3 or 6.",
        ),
        ("experiment=erl_pendulum plan.ranks=2", "workflow=population has one process, not 2 ranks."),
    ],
)
def test_a_mistake_in_the_plans_own_settings_is_named(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in plan_error(capsys, *argument.split())


def test_help_shows_examples_and_the_plans_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([CPU, "--help"])
    text = capsys.readouterr().out
    assert "reverie-plan device=cuda plan.fit_gib=6 " in text
    assert re.search(r"^  plan.format=table +`table` shows .* One of table, json\.$", text, re.MULTILINE)
    assert re.search(r"^  plan.fit_gib=null +Memory of a GPU .* A number or null\.$", text, re.MULTILINE)


def test_a_run_that_cannot_fit_is_refused_with_changes_that_do(empty_folder: Path, server: Server) -> None:
    refused = server.run("train", CPU, "experiment=dreamer_catch", *TOO_LARGE)
    assert (refused.code, refused.out) == (2, "")
    assert refused.error.count("\n") == 1 and not list(empty_folder.iterdir())
    assert re.match(
        r"error: This run needs [\d,.]+ GiB of host RAM \(replay [\d,.]+ GiB\), over ", refused.error
    )
    assert "80% of the" in refused.error and "To start it anyway, set memory.plan=warn." in refused.error
    proposed = re.findall(r"[\w.]+=\w+", refused.error.partition("Set ")[2])
    assert proposed[0].startswith("buffer.capacity=") and proposed.pop() == "memory.plan=warn"
    # The tests use processes as small as the proposing process, because process size is in the plan.
    for change in proposed:
        planned_anew = server.run("plan", CPU, "experiment=dreamer_catch", *TOO_LARGE, change)
        assert (planned_anew.code, planned_anew.error) == (0, ""), change


def test_the_plan_itself_is_shown_before_it_is_refused(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = server.run("plan", CPU, "experiment=dreamer_catch", *TOO_LARGE)
    assert refused.code == 2
    assert "over the limit" in refused.out and refused.error.startswith("error: This run needs ")
    assert re.match(r"Does not fit: host RAM [\d.,]+ GiB, over [\d.,]+ GiB \(80% of ", refused.out)
    main([CPU, "experiment=dreamer_catch", *TOO_LARGE, "memory.plan=warn"])
    shown = capsys.readouterr()
    assert "over the limit" in shown.out and shown.err == ""


def test_too_large_a_model_is_refused_with_smaller_batches_and_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_memory(monkeypatch, 1.2)
    large = (CPU, "compile=none", "model=size12m", "training.batch_size=32", "buffer.capacity=5000")
    error = error_of(capsys, lambda: main(large), has_output=True)
    # The message depends on the size of this process.
    assert "activations of the world model" in error
    assert "Set training.batch_size=" in error
    for change in re.findall(r"[\w.]+=\w+", error.partition("Set ")[2])[:-1]:
        assert planned(capsys, *large, change)["fits"]


def test_a_capacity_over_the_budget_alone_is_refused_by_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = train_error(capsys, CPU, "buffer=ram", "buffer.memory_budget_gib=0.5")
    assert "over buffer.memory_budget_gib=0.5. Lower buffer.capacity to" in error


def test_with_warn_a_run_over_its_limit_goes_on(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_module, "memory_limit_bytes", lambda: 100_000_000)
    short = (*CARTPOLE, "training.total_timesteps=50")
    error = train_error(capsys, *short, "run_dir=run")
    assert "No single change makes it fit. To start it anyway, set memory.plan=warn." in error
    assert not list(empty_folder.iterdir())
    log = (start(empty_folder / "run", *short, "memory.plan=warn") / "train.log").read_text()
    assert "WARNING This run needs" in log and "finished" in log


def test_the_largest_model_for_a_card_fits_it_and_the_next_one_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = ("experiment=dreamer_ataripong100k", "buffer.memory_budget_gib=1")
    found = planned(capsys, "plan.fit_gib=6", *plain)
    assert found["fit.model"] == found["model"] and found["device"] == "cuda" and found["fits"]
    assert found["gpu_memory.limit_bytes"] == 6 * GIB
    assert int(str(found["gpu_memory.total_bytes"])) <= 6 * GIB
    larger = model_sizes()[model_sizes().index(str(found["fit.model"])) + 1]
    beyond = planned(capsys, plain[0], "device=cuda", f"model={larger}", "buffer.capacity=2000")
    assert int(str(beyond["gpu_memory.total_bytes"])) > 6 * GIB
    capacity = int(str(found["fit.capacity"]))
    same = [*plain, f"model={found['fit.model']}"]
    assert planned(capsys, *same, "device=cuda", f"buffer.capacity={capacity}")["fits"]
    larger_still = [CPU, *same, f"buffer.capacity={capacity + 1000}"]
    assert "over buffer.memory_budget_gib=1" in train_error(capsys, *larger_still)


SHARED = (CPU, "experiment=dreamer_catch", "model=debug", "env.num_envs=4", "training.batch_size=4")


def test_ranks_that_are_not_started_are_planned_as_those_of_torchrun_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, found = planned(capsys, *SHARED), planned(capsys, *SHARED, "plan.ranks=2")
    assert (alone["ranks"], found["ranks"]) == (1, 2)
    halves = [2 * int(str(found["host_ram.replay_bytes"])), int(str(alone["host_ram.replay_bytes"]))]
    assert halves[0] == pytest.approx(halves[1], rel=0.01)
    assert found["host_ram.shared_bytes"] == 2 * int(str(found["host_ram.total_bytes"]))
    others = int(str(found["disk.shared_bytes"])) - int(str(found["disk.total_bytes"]))
    networks = int(str(found["disk.networks_in_checkpoints_bytes"]))
    # Only rank 0 writes the networks.
    assert 0 < others < int(str(found["disk.total_bytes"])) - networks
    apart = planned(capsys, *SHARED, "plan.ranks=2", "plan.machines=2")
    assert apart["host_ram.shared_bytes"] == apart["host_ram.total_bytes"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert planned(capsys, *SHARED)["host_ram.shared_bytes"] == pytest.approx(
        int(str(found["host_ram.shared_bytes"])), rel=0.01
    )


def test_ranks_that_do_not_fit_together_are_refused_with_changes_of_the_whole_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit_memory(monkeypatch, 1.4, ranks=2)
    large = (
        *SHARED,
        "compile=none",
        "buffer.capacity=400000",
        "buffer.memory_budget_gib=100",
        "plan.ranks=2",
    )
    error = error_of(capsys, lambda: main(large), has_output=True)
    assert re.match(r"This run needs \S+ GiB \(2 ranks of \S+ GiB\) of host RAM \(replay ", error)
    [capacity] = map(int, re.findall(r"Set buffer.capacity=(\d+)", error))
    warn = (*large, "memory.plan=warn")
    assert planned(capsys, *large, f"buffer.capacity={capacity}")["fits"]
    assert not planned(capsys, *warn, f"buffer.capacity={3 * capacity // 2}")["fits"]


def test_the_largest_replay_of_ranks_is_that_of_the_whole_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ("env.num_envs=8", "buffer=ram", "buffer.memory_budget_gib=1")
    found = planned(capsys, "plan.fit_gib=3", "plan.ranks=4", *whole)
    # Each rank has its own card.
    assert found["gpu_memory.shared_bytes"] == found["gpu_memory.total_bytes"]
    assert int(str(found["gpu_memory.total_bytes"])) <= 3 * GIB
    monkeypatch.setenv("WORLD_SIZE", "4")
    larger = f"buffer.capacity={int(str(found['fit.capacity'])) + 1000}"
    error = train_error(capsys, CPU, *whole, f"model={found['fit.model']}", larger)
    assert "over buffer.memory_budget_gib=1. Lower buffer.capacity to " in error


def test_a_replay_on_the_card_shares_it_with_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "plan.fit_gib=5", "buffer=cuda")
    assert int(str(found["gpu_memory.replay_bytes"])) > 0
    assert int(str(found["gpu_memory.total_bytes"])) <= 5 * GIB


def test_a_card_that_is_too_small_for_any_model_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    error = plan_error(capsys, "plan.fit_gib=0.6")
    assert "plan.fit_gib=0.6: the smallest model, size1m, needs " in error


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="a folder on a file system without room")
def test_the_repair_of_a_full_disk_is_another_folder(capsys: pytest.CaptureFixture[str]) -> None:
    error = train_error(capsys, *CARTPOLE, "run_dir=/proc/run")
    assert (
        "Set run_dir to a folder on a disk with more space. To start it anyway, set memory.plan=warn" in error
    )
