"""Compare compiled with eager updates and actions.

This is a separate program, because the runtime type checks of the tests cannot be compiled. One program
covers all cases, so that common parts are compiled once.

python -m tests.workflows.compiled_against_written [discrete] [continuous] [uncompiled]
"""

import sys
from dataclasses import replace

import torch
import torch._inductor.config as inductor

from reverie.utils.compilation import COMPILING, Compilations
from reverie.workflows.world_models import CompiledDreamer

from .tiny import IMAGE, VECTOR, make_arrival, make_batch, snapshot, tiny_workflow

UPDATES = 5


def compare(is_discrete: bool) -> None:
    notes: list[str | None] = []
    compilations = Compilations(notes.append)
    torch.manual_seed(0)
    written = tiny_workflow(IMAGE | VECTOR, is_discrete)
    compiled = CompiledDreamer(written.env, written.config, written.device)
    compiled.load_state_dict(written.state_dict())
    for count in range(UPDATES):
        batch = make_batch(written)
        batch = replace(batch, reward=batch.reward + 0.1 * count)
        expected, found = written.update(batch), compiled.update(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            torch.testing.assert_close(
                found.metrics[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
            )
        arrival = make_arrival(written, is_first=count == 0)
        left, right = written.collect_step(arrival), compiled.collect_step(arrival)
        torch.testing.assert_close(
            torch.from_numpy(right.action), torch.from_numpy(left.action), atol=1e-4, rtol=0
        )
        torch.testing.assert_close(right.latent.deter, left.latent.deter, atol=1e-4, rtol=1e-3)
        assert torch.equal(right.latent.stoch, left.latent.stoch)
        compilations.settle()
    states = [snapshot(w.world_model) | snapshot(w.controller) for w in (written, compiled)]
    for name, value in states[0].items():
        difference = (states[1][name] - value).norm() / value.norm().clamp(min=1e-12)
        assert float(difference) < 1e-3, name
    assert compilations.count > 4 and compilations.seconds > 0.0
    assert compilations.late_count == 0
    assert notes == [COMPILING, None] * compilations.count


def compare_uncompiled() -> None:
    """Check that without compilation all results match bit for bit."""
    torch.manual_seed(0)
    written = tiny_workflow(VECTOR)
    compiled = CompiledDreamer(written.env, written.config, written.device)
    compiled.load_state_dict(written.state_dict())
    for _ in range(2):
        batch, arrival = make_batch(written), make_arrival(written, is_first=True)
        expected, found = written.update(batch), compiled.update(batch)
        assert all(torch.equal(found.metrics[name], value) for name, value in expected.metrics.items())
        left, right = written.collect_step(arrival), compiled.collect_step(arrival)
        assert torch.equal(left.latent.deter, right.latent.deter)


if __name__ == "__main__":
    for comparison in sys.argv[1:]:
        print(comparison, flush=True)
        torch._dynamo.reset()
        if comparison == "uncompiled":
            with inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True}):
                compare_uncompiled()
        else:
            compare(is_discrete=comparison == "discrete")
