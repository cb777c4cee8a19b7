"""DreamerV3: acting, and training of a world model and a controller on replayed sequences."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...buffers import OBSERVATION_PREFIX, SequenceBatch, StoredLatent
from ...models import LEARNERS, LaProp, LatentState, ModelConfig, Noise, OptimizerConfig, RSSMOutput, falling
from ...utils.ranks import ALONE, Ranks
from ...utils.seeding import torch_generator
from ...utils.state_files import check_structure
from ...utils.timestep import EnvSpec, TimeStep
from ..base import PolicyOutput, UpdateOutput
from .config import ControllerConfig, WorldModelConfig
from .controller import Controller, imagine
from .world_model import WorldModel, open_loop_animations

Tensors = dict[str, Tensor]


@dataclass(kw_only=True, slots=True)
class DreamerConfig:
    """The parts of a run's configuration that the algorithm uses."""

    model: ModelConfig
    world_model: WorldModelConfig
    controller: ControllerConfig
    optimizer: OptimizerConfig

    has_window_losses: bool = False
    """Whether updates return `UpdateOutput.window_losses`."""


class DreamerWorkflow:
    """DreamerV3 on one device.

    Matrix products and convolutions use `autocast_dtype`. Parameters, norms, losses, the recurrent state and
    the optimizer state are always float32. Acting and learning use separate random streams of the run's seed.

    Each of `ranks` has `env.num_envs` environments and an equal part, in rank order, of every global batch.
    """

    def __init__(
        self,
        env: EnvSpec,
        config: DreamerConfig,
        device: torch.device,
        autocast_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.env, self.config, self.device, self.autocast_dtype = env, config, device, autocast_dtype
        self.ranks = ranks
        model, controller = config.model, config.controller
        self.world_model = WorldModel(env, model, config.world_model, controller.discount, ranks).to(device)
        feature_size = self.world_model.feature_size
        self.controller = Controller(env.action, feature_size, model, controller, ranks).to(device)
        for module in (self.world_model, self.controller):
            ranks.broadcast_([*module.parameters(), *module.buffers()])
        # Separate optimizers allow different rates, and a warm-up that trains only the world model.
        self.optimizers: dict[str, LaProp] = {}
        self._names: dict[str, list[str]] = {}
        paths = {"world_model": "world_model", "actor": "controller.actor", "critic": "controller.critic"}
        for learner, path in paths.items():
            named = attrgetter(path)(self).named_parameters(path)
            trained = {name: parameter for name, parameter in named if parameter.requires_grad}
            self.optimizers[learner] = LaProp(trained.values(), config.optimizer.of(learner))
            self._names[learner] = list(trained)
        of_ranks = {"collect": ranks, "update": ranks, "report": ALONE}
        self.noise = {
            name: Noise(torch_generator(seed, name, device), device, of) for name, of in of_ranks.items()
        }
        self._prev_action = torch.zeros(env.num_envs, env.action.size, device=device)
        self.fast_step: Callable[[Tensors], Tensors] | None = None
        """A faster version of `policy_on_tensors`, used for acting from the cached state."""

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters, excluding the slow critic."""
        return sum(p.numel() for optimizer in self.optimizers.values() for p in optimizer.parameters)

    @torch.no_grad()
    def collect_step(self, step: TimeStep) -> PolicyOutput:
        """Choose one action per environment and cache the detached model state for the next call.

        Final records alone (`TimeStep.envs`) need neither. They get zeros, and the model does not see them.
        """
        noise = self.noise["collect"]
        # If a part of an observation is a tensor, the environment accepts tensors.
        is_on_device = any(isinstance(value, Tensor) for value in step.observation.values())
        if step.envs is None:
            self._prev_action, state = self.act(step, self._prev_action, noise, noise, None)
            action, latent = self._prev_action, StoredLatent(*_stored(state))
        else:
            action = self._prev_action.new_zeros(len(step.envs), self.env.action.size)
            latent = StoredLatent(*_stored(self.world_model.rssm.initial(len(step.envs))))
        return PolicyOutput(action if is_on_device else action.cpu().numpy(), latent)

    def act(
        self,
        step: TimeStep,
        prev_action: Tensor,
        latent_source: Noise,
        action_source: Noise,
        state: LatentState | None,
    ) -> tuple[Tensor, LatentState]:
        """Return actions (N, A) and states. `None` uses the cached state. The caller disables gradients."""
        rssm = self.world_model.rssm
        seen = step.observation.items()
        inputs = {OBSERVATION_PREFIX + key: torch.as_tensor(value) for key, value in seen} | {
            "is_first": torch.from_numpy(step.is_first),
            "prev_action": prev_action,
            "latent_noise": rssm.noise(latent_source, len(prev_action), 1),
            "action_noise": self.controller.actor.noise(action_source, *prev_action.shape),
        }
        # Evaluation passes a state. Its shapes differ and it has few steps, so compiling does not pay off.
        if self.fast_step is None or state is not None:
            return self._policy_step(inputs, state)
        before = rssm.online_state(len(prev_action))
        outputs = self.fast_step(inputs | {"deter": before.deter, "stoch": before.stoch})
        after = LatentState(outputs["deter"], outputs["stoch"])
        rssm.set_online_state(after)
        return outputs["action"], after

    def policy_on_tensors(self, inputs: Tensors) -> Tensors:
        """Return the action and the state in which it was chosen. This is a compilable tensor function."""
        action, state = self._policy_step(inputs, LatentState(inputs["deter"], inputs["stoch"]))
        return {"action": action, "deter": state.deter, "stoch": state.stoch}

    def _policy_step(self, inputs: Tensors, state: LatentState | None) -> tuple[Tensor, LatentState]:
        """Return the results of `act`, given noise, observations (N, ...) and flags on the host."""
        world_model = self.world_model
        observation = {key: inputs[OBSERVATION_PREFIX + key] for key in self.env.observation}
        with self._autocast():
            observed = world_model.rssm.observe(
                world_model.encoder({k: v.to(self.device).unsqueeze(1) for k, v in observation.items()}),
                inputs["prev_action"].unsqueeze(1),
                inputs["is_first"].to(self.device).unsqueeze(1),
                inputs["latent_noise"],
                state=state,
                detach_posteriors=True,
                compute_prior=False,
            )
            policy = self.controller.actor(observed.posterior.feature[:, 0])
        return policy.sample(inputs["action_noise"]), observed.posterior.select((slice(None), 0))

    def update(self, batch: SequenceBatch) -> UpdateOutput:
        """Update the world model and the controller with one backward pass through the sum of all losses."""
        return self._learn(batch, controller=True)

    def update_world_model(self, batch: SequenceBatch) -> UpdateOutput:
        """Update only the world model (warm-up)."""
        return self._learn(batch, controller=False)

    def losses(
        self, batch: SequenceBatch, noise: Noise, controller: bool = True
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], RSSMOutput]:
        """Return the unreduced losses, metrics and replayed states. Each part has its own autocast cache."""
        steps = batch.trained()
        with self._autocast():
            tokens, observed = self.world_model.observe(batch, noise)
            losses, metrics = self.world_model.losses(steps, tokens, observed)
        if controller:
            horizon, length = self.config.controller.horizon, steps.reward.shape[1]
            last = slice(length - (self.config.controller.imagine_last or length), length)
            replayed = observed.posterior.select((slice(None), last))
            start, actor = replayed.flatten(), self.controller.actor
            with self._autocast():
                imagined = imagine(self.world_model, actor, start, horizon, noise)
            with self._autocast():
                controller_losses, controller_metrics = self.controller.losses(
                    imagined, replayed, steps.select(slice(None), last), self.entropy_scale()
                )
            losses |= controller_losses
            metrics |= controller_metrics
        return losses, metrics, observed

    def entropy_scale(self) -> float | Tensor:
        """Return the weight of the actor's entropy for the next update."""
        c = self.config.controller
        updates = self.optimizers["actor"].updates
        return falling(c.entropy_scale, c.least_entropy_scale, c.entropy_decay_from, updates)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """Return the weighted sum of all mean losses, 0-d float32."""
        scales = self.controller.scales()
        means = {name: scales.get(name, 1.0) * loss.mean() for name, loss in losses.items()}
        return torch.stack([*self.world_model.weighted(means).values()]).sum()

    def report(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """Return open-loop predictions by image key. See `open_loop_animations`."""
        with torch.no_grad(), self._autocast():
            return open_loop_animations(self.world_model, batch, self.noise["report"])

    def eval_policy(self, num_envs: int, seed: int, sample: bool) -> "DreamerEvalPolicy":
        """Return a policy for evaluation. `sample=False` uses the mode (latents are still sampled)."""
        # The name determines the random stream, so changing it would change results.
        generator = torch_generator(seed, "player", self.device)
        return DreamerEvalPolicy(self, num_envs, generator, sample)

    def components(self) -> dict[str, tuple[Any, ...]]:
        """See `Agent.components`. Optimizers are last, because memory counts for its first owner."""
        modules = {"world_model": self.world_model, "controller": self.controller}
        online = (self.world_model.rssm._state, self._prev_action)
        found: dict[str, tuple[Any, ...]] = {"online_state": online}
        for name, module in modules.items():
            gradients = (parameter.grad for parameter in module.parameters())
            found[f"gradients/{name}"] = tuple(gradient for gradient in gradients if gradient is not None)
        found["normalizer"] = (self.controller.normalizer,)
        for name, module in modules.items():
            found[f"networks/{name}"] = (*module.parameters(), *module.buffers())
        for name, optimizer in self.optimizers.items():
            found[f"optimizers/{name}"] = (optimizer.state_dict(),)
        return found

    def is_equal_on_ranks(self) -> bool:
        """Return whether networks, moments and shared noise are identical on all ranks, bit for bit."""
        modules = (self.world_model, self.controller)
        tensors = [tensor for module in modules for tensor in module.state_dict().values()]
        for optimizer in self.optimizers.values():
            tensors += [*optimizer.mean_square, *optimizer.momentum, optimizer.updates]
        shared = [self.noise[name].get_state() for name in ("collect", "update")]
        return self.ranks.are_equal(tensors + shared)

    def state_dict(self) -> dict[str, Any]:
        """Return the networks, optimizers, generators and acting state, without copying tensors."""
        online = self.world_model.rssm._state
        return {
            "world_model": self.world_model.state_dict(),
            "controller": self.controller.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "noise": {name: noise.get_state() for name, noise in self.noise.items()},
            "online": {
                "deter": online and online.deter,
                "stoch": online and online.stoch,
                "prev_action": self._prev_action,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy a saved state of the same sizes. The acting state is only copied if `env.num_envs` matches.

        Raises:
            ValueError: If names, dtypes or shapes differ. The current state is then unchanged.
        """
        own = self.state_dict()
        learned = ("world_model", "controller", "optimizers")
        check_structure({name: state[name] for name in learned}, {name: own[name] for name in learned})
        online = state["online"]
        count, has_latents = len(online["prev_action"]), online["deter"] is not None
        fresh = self.world_model.rssm.initial(count)
        form = {
            "deter": fresh.deter if has_latents else None,
            "stoch": fresh.stoch if has_latents else None,
            "prev_action": self._prev_action.new_empty(count, self.env.action.size),
        }
        check_structure(online, form)
        self.world_model.load_state_dict(state["world_model"])
        self.controller.load_state_dict(state["controller"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        for name, noise in self.noise.items():
            noise.set_state(state["noise"][name])
        if count == len(self._prev_action):
            copies = {name: x.to(self.device, copy=True) for name, x in online.items() if x is not None}
            self._prev_action = copies.pop("prev_action")
            self.world_model.rssm.set_online_state(LatentState(**copies) if copies else None)

    def _learn(self, batch: SequenceBatch, controller: bool) -> UpdateOutput:
        """Perform one update. If any loss or gradient is not finite, only the noise generator advances."""
        parts = LEARNERS if controller else ("world_model",)
        normalizer = self.controller.normalizer
        averages = {average: average.clone() for average in (normalizer.low, normalizer.high)}
        losses, metrics, observed = self.losses(batch, self.noise["update"], controller)
        total = self.total(losses)
        total.backward()
        metrics |= {f"loss/{name}": loss.detach().mean() for name, loss in losses.items()}
        metrics["loss/total"] = total.detach()
        window_losses = None
        if self.config.has_window_losses:
            window_losses = self._window_losses(losses, observed.posterior.deter.shape[:2])
        deter, stoch = _stored(observed.posterior)
        # The graph keeps the inputs of the scan, which the optimizers do not need.
        del losses, total, observed
        # All ranks build the same graph, so averages over ranks are gradients and metrics of the whole batch.
        gradients = [p.grad for part in parts for p in self.optimizers[part].parameters if p.grad is not None]
        self.ranks.average_([*gradients, *metrics.values()])
        norms_of = {part: self.optimizers[part].gradient_norms() for part in parts}
        norms = torch.cat([*norms_of.values()])
        finite = metrics["loss/total"].isfinite() & norms.isfinite().all()
        for part in parts:
            applied = self.optimizers[part].step(norms=norms_of[part], finite=finite)
            metrics |= {f"{part}/{name}": value for name, value in applied.items()}
        if controller:
            self.controller.update_slow_critic(finite)
        # `losses` has already updated the moving averages, so a non-finite update restores them.
        for average, before in averages.items():
            average.copy_(torch.where(finite, average, before))
        names = tuple(name for part in parts for name in self._names[part])
        return UpdateOutput(metrics, deter, stoch, finite, norms, names, window_losses)

    def _window_losses(self, losses: dict[str, Tensor], shape: torch.Size) -> Tensor:
        """Return the sum of the losses that have a value for each trained step, as means of windows (B,)."""
        scales = self.world_model.scales()
        of_steps = {name: loss.detach().mean(1) for name, loss in losses.items() if loss.shape == shape}
        return torch.stack([scales.get(name, 1.0) * means for name, means in of_steps.items()]).sum(0)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast_dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast_dtype)


class DreamerEvalPolicy:
    """Acts with a workflow's parameters but a separate model state and noise, without affecting training."""

    def __init__(
        self, workflow: DreamerWorkflow, num_envs: int, generator: torch.Generator, sample: bool
    ) -> None:
        self.workflow = workflow
        self.sample = sample
        self.latent_source, self.no_noise = Noise(generator, workflow.device), Noise(None, workflow.device)
        self.state = workflow.world_model.rssm.initial(num_envs)
        self.prev_action = torch.zeros(num_envs, workflow.env.action.size, device=workflow.device)

    @torch.no_grad()
    def act(self, step: TimeStep) -> NDArray[np.float32]:
        """Return the actions (N, A) for N records. Final records alone (`TimeStep.envs`) get zeros."""
        if step.envs is not None:
            return np.zeros((len(step.envs), self.workflow.env.action.size), np.float32)
        action_source = self.latent_source if self.sample else self.no_noise
        self.prev_action, self.state = self.workflow.act(
            step, self.prev_action, self.latent_source, action_source, self.state
        )
        return self.prev_action.cpu().numpy()


def _stored(state: LatentState) -> tuple[Tensor, Tensor]:
    """Return deter and class indices (uint8) in the replay buffer's format."""
    return state.deter.detach(), state.stoch.detach().argmax(-1).to(torch.uint8)
