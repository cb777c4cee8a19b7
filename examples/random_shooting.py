"""A workflow of your own: plan by random shooting instead of learning an actor.

    python examples/random_shooting.py experiment=dreamer_catch device=cpu run_dir=experiments/shooting
    python examples/random_shooting.py resume=experiments/shooting training.total_timesteps=8000
    python examples/random_shooting.py evaluate run=experiments/shooting
    python examples/random_shooting.py certify experiment=dreamer_catch device=cpu certify.steps=500

Only the world model learns. To act, the workflow imagines random action sequences and executes the first
action of the best one. Settings, replay buffer, checkpoints, plan and certificate are those of Dreamer.
"""

import sys

import torch
import torch.nn.functional as F

from reverie.commands import certify, command_line, evaluate
from reverie.config.dreamer import DreamerTrainConfig
from reverie.models import LatentState
from reverie.orchestration.dreamer.dry_run import autocast_dtype, workflow_config
from reverie.orchestration.dreamer.recipe import DreamerRecipe
from reverie.orchestration.recipes import RECIPES
from reverie.utils.errors import UserError
from reverie.workflows.world_models import DreamerWorkflow

CANDIDATES, HORIZON = 64, 8


class RandomShooting(DreamerWorkflow):
    """Dreamer's world model with a planner instead of an actor and a critic."""

    def act(self, step, prev_action, latent_source, action_source, state):
        """Return the first actions (N, A) of the best sequences, and the current states."""
        _, believed = super().act(step, prev_action, latent_source, action_source, state)
        return self._plan(believed, latent_source), believed

    def update(self, batch):
        """Update the world model only."""
        return self.update_world_model(batch)

    def _plan(self, state, noise):
        """Return the first action of the candidate with the largest imagined return."""
        rssm, num_envs = self.world_model.rssm, len(state.deter)
        start = LatentState(*(x.repeat_interleave(CANDIDATES, 0) for x in (state.deter, state.stoch)))
        # The generator of `noise` is part of a checkpoint, so a resumed run makes the same plans.
        shape = (HORIZON, num_envs * CANDIDATES, self.env.action.size)
        if self.env.action.is_onehot:
            actions = F.one_hot(noise.exponential(*shape, axis=1).argmin(-1), shape[-1]).float()
        else:
            actions = noise.normal(*shape, axis=1).clamp(-1, 1)
        latent_noise = rssm.noise(noise, HORIZON, shape[1], axis=1)
        with self._autocast():
            states, _ = rssm.imagine(start, lambda time, _: actions[time], latent_noise)
            reward, discount = self.world_model.predict(torch.stack([each.feature for each in states[1:]]))
        reached = torch.cat([torch.ones_like(discount[:1]), discount[:-1].cumprod(0)])
        best = (reached * reward).sum(0).unflatten(0, (num_envs, CANDIDATES)).argmax(1)
        return actions[0].unflatten(0, (num_envs, CANDIDATES))[torch.arange(num_envs), best]


class ShootingRecipe(DreamerRecipe):
    """Dreamer's recipe with another algorithm."""

    def check(self, config, env):
        """Refuse actions that this example does not sample."""
        super().check(config, env)
        if env.action.parts:
            raise UserError("This example plans one discrete action or continuous ones, not MultiDiscrete.")

    def build_agent(self, config, env):
        """Return the workflow with initialized parameters."""
        device = torch.device(config.device.value)
        return RandomShooting(
            env, workflow_config(config), device, autocast_dtype(config), config.seed, self.ranks
        )


# This line registers the workflow for runs with this configuration.
RECIPES[DreamerTrainConfig] = ShootingRecipe

COMMANDS = {"train": command_line.main, "evaluate": evaluate.main, "certify": certify.main}

if __name__ == "__main__":
    name = sys.argv.pop(1) if sys.argv[1:2] and sys.argv[1] in COMMANDS else "train"
    COMMANDS[name]()
