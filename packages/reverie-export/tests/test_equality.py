"""The function in onnxruntime returns the actions and states of `Agent.act` for the same random numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from reverie_export import export_onnx
from reverie_export.step import STATE

import reverie
from reverie import Agent
from reverie.models import Noise, distributions
from reverie.workflows.world_models import DreamerEvalPolicy

from .agents import Choices, Spaces, Switches, random_agent

TOLERANCE = 1e-4


class Exported:
    """A file in onnxruntime, with the probabilities of its samples as additional outputs."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        nodes = model.graph.node
        compared = {node.input[0] for node in nodes if node.op_type == "ArgMax"}
        races = [node for node in nodes if node.op_type == "Div" and node.output[0] in compared]
        model.graph.output.extend(onnx.ValueInfoProto(name=node.input[0]) for node in races)
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self.inputs = {each.name: each.shape for each in self.session.get_inputs()}

    def __call__(self, feed: dict[str, Any]) -> tuple[Any, dict[str, NDArray], list[NDArray]]:
        """Return the action, the new state, and the probabilities."""
        outputs: Any = self.session.run(None, feed)
        action, *others = outputs
        return action, dict(zip(STATE, others, strict=False)), others[len(STATE) :]


class Drawn:
    """The random numbers and the probabilities of `Agent.act`, recorded where it draws and uses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noise: list[NDArray] = []
        self.probabilities: list[NDArray] = []
        self.prev_action = np.empty(0, np.float32)

        def recorded(draw: Callable[..., Any]) -> Callable[..., Any]:
            def draw_and_record(*args: Any, **kwargs: Any) -> Any:
                self.noise.append((result := draw(*args, **kwargs)).numpy().copy())
                return result

            return draw_and_record

        for name in ("exponential", "normal"):
            monkeypatch.setattr(Noise, name, recorded(getattr(Noise, name)))
        sample, act = distributions.sample_onehot, DreamerEvalPolicy.act

        def sample_and_record(probs: Any, noise: Any) -> Any:
            self.probabilities.append(probs.numpy().copy())
            return sample(probs, noise)

        def act_and_record(policy: DreamerEvalPolicy, step: Any) -> Any:
            actions = act(policy, step)
            self.prev_action = actions[0].copy()
            return actions

        monkeypatch.setattr(distributions, "sample_onehot", sample_and_record)
        monkeypatch.setattr(DreamerEvalPolicy, "act", act_and_record)

    def clear(self) -> None:
        self.noise.clear()
        self.probabilities.clear()


def state_of(agent: Agent, drawn: Drawn) -> dict[str, NDArray]:
    """Return the agent's recurrent state after its last action."""
    deter, stoch = (x[0].numpy().copy() for x in (agent.state.deter, agent.state.stoch))
    return dict(zip(STATE, (deter, stoch, drawn.prev_action), strict=True))


def parts(space: spaces.Space, observation: Any) -> dict[str, Any]:
    """Return the inputs for an observation."""
    if isinstance(space, spaces.Dict):
        return {f"observation.{key}": np.asarray(value) for key, value in observation.items()}
    assert space.shape is not None
    return {f"observation.{'image' if len(space.shape) == 3 else 'vector'}": np.asarray(observation)}


def assert_equal(
    agent: Agent, drawn: Drawn, action: Any, found: tuple[Any, dict[str, NDArray], list[NDArray]]
) -> None:
    """Compare one step with the results of `Agent.act`. Samples must be equal."""
    given, state, _ = found
    expected = state_of(agent, drawn)
    assert np.array_equal(state["stoch"], expected["stoch"])
    np.testing.assert_allclose(state["deter"], expected["deter"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state["prev_action"], expected["prev_action"], rtol=0, atol=TOLERANCE)
    assert given.shape == np.shape(action) and given.dtype == np.asarray(action).dtype
    if isinstance(agent.action_space, spaces.Box):
        np.testing.assert_allclose(given, action, rtol=0, atol=TOLERANCE)
    else:
        assert np.array_equal(given, action)


def play(
    agent: Agent, path: Path, drawn: Drawn, steps: int, free_steps: int, deterministic: bool = False
) -> int:
    """Compare all steps from the agent's own state, and the first ones from the function's own state.

    Returns:
        The number of different actions.
    """
    function, env = Exported(path), agent.make_env()
    observation, _ = env.reset(seed=0)
    agent.reset()
    [size] = function.inputs["prev_action"]
    drawn.prev_action = np.zeros(size, np.float32)
    is_first, free, actions = True, state_of(agent, drawn), set()
    for step in range(steps):
        drawn.clear()
        before = state_of(agent, drawn)
        action = agent.act(observation, deterministic=deterministic)
        latent_noise, action_noise = drawn.noise
        feed = parts(agent.observation_space, observation) | {
            "is_first": np.array(is_first),
            "latent_noise": latent_noise[0, 0],
            "action_noise": action_noise[0],
        }
        found = function(feed | before)
        assert_equal(agent, drawn, action, found)
        assert len(found[2]) == len(drawn.probabilities) > 0
        for ours, theirs in zip(found[2], drawn.probabilities, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
        if step < free_steps:
            found = function(feed | free)
            assert_equal(agent, drawn, action, found)
            free = found[1]
        actions.add(np.asarray(action).tobytes())
        observation, _, terminated, truncated, _ = env.step(action)
        if is_first := terminated or truncated:
            observation, _ = env.reset()
            agent.reset()
    return len(actions)


# CartPole's recurrent state amplifies the rounding of float32. If its first state changes by one unit in the
# last place, PyTorch's own states differ by more than the tolerance after 230 to 320 steps.
@pytest.mark.parametrize(("name", "free_steps"), [("catch", 500), ("cartpole", 150), ("pong", 500)])
def test_a_bundled_agent_acts_equally_for_500_steps(
    name: str, free_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = reverie.load(f"pretrained:{name}", device="cpu", seed=3)
    export_onnx(agent, tmp_path / "agent.onnx")
    drawn = Drawn(monkeypatch)
    assert play(agent, tmp_path / "agent.onnx", drawn, 500, free_steps) >= 2


@pytest.mark.parametrize("env", [Spaces, Choices, Switches])
def test_all_kinds_of_observations_and_actions_are_converted_by_the_function(
    env: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = random_agent(env, "model=debug")
    export_onnx(agent, tmp_path / "agent.onnx")
    drawn = Drawn(monkeypatch)
    assert play(agent, tmp_path / "agent.onnx", drawn, 50, 50) >= 4
    assert play(agent, tmp_path / "agent.onnx", drawn, 10, 10, deterministic=True) >= 1
