"""A population's plan matches the memory of its components and training phases."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from reverie.buffers import EpisodeRecords
from reverie.checkpoints.checkpoint import CHECKPOINTS
from reverie.config.compose import compose_jobs
from reverie.config.population import PopulationTrainConfig
from reverie.config.resolve import typed
from reverie.orchestration.orchestrator import build_replay
from reverie.orchestration.population.dry_run import generation_steps
from reverie.orchestration.population.recipe import PopulationRecipe, build_engine
from reverie.orchestration.recipes import recipe_of
from reverie.planning import HOST, plan_run
from reverie.planning import plan as plan_module
from reverie.planning.recipe import environment_spec
from reverie.planning.suggestions import changed, fitting_changes
from reverie.planning.torch_modes import LiveBytes
from reverie.utils.footprint import folder_disk_bytes
from reverie.workflows.population.td3 import TrainPhase

from ..runs.helpers import POPULATION, bytes_of, start


def configured(*overrides: str) -> PopulationTrainConfig:
    return typed(compose_jobs([*POPULATION, *overrides])[0], PopulationTrainConfig)


def test_the_rows_are_the_bytes_that_the_parts_own(tmp_path: Path) -> None:
    config = configured("population.size=6", "td3.hidden_units=32")
    plan = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config))
    host = plan.resource(HOST)
    with closing(build_engine(config)) as engine:
        replay, workflow = (
            build_replay(config, recipe_of(config).replay_spec(config, engine.spec), tmp_path),
            PopulationRecipe().build_agent(config, engine.spec),
        )
        assert bytes_of(host, "episodes of a generation") == 3 * engine.planned_bytes
    assert bytes_of(host, "replay") + bytes_of(host, "index of the replay") == replay.nbytes()
    held = sum(bytes_of(host, name) for name in ("parameters", "target networks", "optimizer state"))
    assert held == sum(each.nbytes for each in workflow.members.tensors())
    assert held == bytes_of(host, "members before the training phase")
    assert bytes_of(host, "best policy") == sum(each.nbytes for each in workflow.best_actor.values())
    assert plan.num_parameters == workflow.num_parameters
    assert recipe_of(config).model_name(config) == "6 members of TD3"


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_peak_of_a_training_phase_is_within_5_percent_of_its_plan(
    accumulation: int, tmp_path: Path
) -> None:
    config = configured(
        "td3.hidden_units=64",
        "training.batch_size=64",
        f"training.gradient_accumulation_steps={accumulation}",
    )
    spec = environment_spec(config, recipe_of(config))
    host = plan_run(config, spec, recipe_of(config)).resource(HOST)
    replay, workflow = (
        build_replay(config, recipe_of(config).replay_spec(config, spec), tmp_path),
        PopulationRecipe().build_agent(config, spec),
    )
    torch.manual_seed(0)
    steps = 200
    episode = EpisodeRecords(
        observation={"vector": torch.randn(steps + 1, 3).numpy()},
        action=torch.rand(steps + 1, 1).numpy(),
        reward=torch.randn(steps + 1).numpy(),
        is_terminal=False,
    )
    replay.add_episode(0, episode)
    phase = TrainPhase(0, 0, tuple(range(4)), 4, accumulation, 64)
    workflow.td3.learn(workflow.members, replay, phase)
    with LiveBytes() as counter:
        counter.count(list(workflow.members.tensors()), "members")
        workflow.td3.learn(workflow.members, replay, phase)
    planned = bytes_of(host, "batches of all members") + bytes_of(host, "update of all members")
    assert counter.peak - sum(each.nbytes for each in workflow.members.tensors()) == pytest.approx(
        planned, rel=0.05
    )


def test_disk_has_room_for_the_checkpoints(tmp_path: Path) -> None:
    run = start(tmp_path / "run", *POPULATION)
    disk = plan_run(
        configured(), environment_spec(configured(), recipe_of(configured())), recipe_of(configured())
    ).resource("disk")
    planned = sum(row.nbytes for row in disk.rows if "checkpoints" in row.name)
    assert 0 < folder_disk_bytes(run / CHECKPOINTS) <= planned


def test_a_plan_counts_no_more_generations_than_the_steps_allow() -> None:
    config = configured("training.generations=100000000", "training.total_timesteps=1000")
    spec, recipe = environment_spec(config, recipe_of(config)), recipe_of(config)
    assert recipe.written(config, spec).log_lines == -(-1000 // recipe.num_environments(config))


def test_a_generation_is_as_many_records_as_its_episodes_may_have() -> None:
    config = configured("population.episodes=3", "population.exploration_episodes=2")
    assert generation_steps(config, environment_spec(config, recipe_of(config))) == (4 * 3 + 2) * 21


def test_evolution_alone_plans_no_training() -> None:
    config = configured("population.gradient=off")
    host = plan_run(config, environment_spec(config, recipe_of(config)), recipe_of(config)).resource(HOST)
    assert bytes_of(host, "update of all members") == 0 < bytes_of(host, "parameters")


@pytest.mark.parametrize(
    ("too_large", "proposed"),
    [("population.episodes=100", "population.episodes="), ("td3.hidden_units=4096", "td3.hidden_units=")],
)
def test_a_population_that_cannot_fit_is_refused_with_a_change_that_does(
    too_large: str, proposed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = configured(), configured(too_large)
    spec = environment_spec(large, recipe_of(large))
    needs = [
        plan_run(config, spec, recipe_of(config)).resource(HOST).total_bytes for config in (small, large)
    ]
    # A run may plan for 80 % of the memory.
    limit = sum(needs) // 2 * 10 // 8
    monkeypatch.setattr(plan_module, "memory_limit_bytes", lambda: limit)
    changes = list(fitting_changes(plan_run(large, spec, recipe_of(large)), large, spec, recipe_of(large)))
    assert any(change.startswith(proposed) for change in changes)
    assert not any(
        plan_run(changed(large, change), spec, recipe_of(changed(large, change))).over for change in changes
    )
    # The checkpoint determines the networks and the replay's capacity.
    large.resume = "run"
    plan = plan_run(large, spec, recipe_of(large))
    allowed = {change.partition("=")[0] for change in fitting_changes(plan, large, spec, recipe_of(large))}
    assert allowed <= {"buffer.storage", "population.episodes"}
