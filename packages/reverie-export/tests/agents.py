"""Agents with random networks, and environments with all kinds of observations and actions."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from reverie import Agent
from reverie.api.environments import EnvLike, suite_and_id
from reverie.config.compose import compose_jobs
from reverie.config.resolve import typed
from reverie.orchestration.recipes import recipe_of
from reverie.planning.recipe import environment_spec
from reverie.workflows.world_models import DreamerWorkflow


def random_agent(env: EnvLike, *overrides: str, experiment: str = "dreamer") -> tuple[Agent, Any]:
    """Return an agent that was not trained, and its workflow. The policy depends strongly on the state."""
    settings = ["device=cpu", "precision=float32", "compile=none", *overrides]
    config = typed(compose_jobs([f"experiment={experiment}", *settings])[0])
    suite, name = suite_and_id(env)
    config.env.suite, config.env.id = suite, name or config.env.id
    recipe = recipe_of(config)
    workflow = recipe.build_agent(config, environment_spec(config, recipe))
    agent = Agent(config, workflow, step=None)
    if isinstance(workflow, DreamerWorkflow):
        torch.manual_seed(0)
        for parameter in workflow.controller.actor.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return agent, workflow


class Spaces(gymnasium.Env):
    """Random elements of a space as observations. Episodes have 7 steps."""

    observation_space: spaces.Space = spaces.Dict(
        camera=spaces.Box(0, 255, (50, 81, 3), np.uint8),
        depth=spaces.Box(-1.0, 3.0, (64, 48), np.float32),
        planes=spaces.Box(0, 255, (3, 70, 64), np.uint8),
        gear=spaces.Discrete(4, start=-1),
        joints=spaces.Box(-5.0, 5.0, (2, 3), np.float64),
        switches=spaces.Box(0, 3, (2,), np.int32),
    )
    action_space: spaces.Space = spaces.Box(
        np.array([-2, 0, -np.inf], np.float32), np.array([3, 0.5, 0.25], np.float32)
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), 0.0, self.count == 7, False, {}


class Choices(Spaces):
    """Several choices as actions."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 5])


class Switches(Choices):
    """A table of binary actions."""

    action_space = spaces.MultiBinary([2, 2])
