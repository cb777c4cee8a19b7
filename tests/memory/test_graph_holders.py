import gc
import queue
import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from heapwatch.counters.glibc import in_use_bytes, in_use_source
from heapwatch.objects.graph_holders import (
    GraphGrowth,
    GraphHolder,
    GraphReport,
    find_graph_holders,
    measure_graphs,
)
from heapwatch.objects.walk import walk
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reverie.models import RSSM, LatentState, RSSMOutput

from ..models.tiny import ACTION_SIZE, TINY, TOKEN_SIZE, seeded

CREATE_GRAPH = r"ignore:Using backward\(\) with create_graph=True"


class HalfDetached(RSSM):
    """Detaches its outputs but not its cache, like the bug in the incident."""

    def observe(self, *args: Any, **kwargs: Any) -> RSSMOutput:
        seen = super().observe(*args, **kwargs)
        return RSSMOutput(seen.posterior.detach(), seen.posterior_logits.detach(), seen.prior_logits.detach())


class StochDetached(RSSM):
    """Detaches the cached sample, but not the recurrent state."""

    def observe(self, *args: Any, **kwargs: Any) -> RSSMOutput:
        seen = super().observe(*args, **kwargs)
        assert self._state is not None
        self._state = LatentState(self._state.deter, self._state.stoch.detach())
        return seen


def act(rssm: RSSM, steps: int, detach: bool = False) -> RSSMOutput:
    """Act for some steps, with one call per step, and return the last output."""
    noise, is_first = seeded(0), torch.zeros(2, 1, dtype=torch.bool)
    for _ in range(steps - 1):
        tokens, action = torch.randn(2, 1, TOKEN_SIZE), torch.randn(2, 1, ACTION_SIZE)
        rssm.observe(tokens, action, is_first, rssm.noise(noise, 2, 1), detach_posteriors=detach)
    tokens, action = torch.randn(2, 1, TOKEN_SIZE), torch.randn(2, 1, ACTION_SIZE)
    return rssm.observe(tokens, action, is_first, rssm.noise(noise, 2, 1), detach_posteriors=detach)


def only(report: GraphReport) -> GraphHolder:
    assert len(report.holders) == 1, [each.text() for each in report.holders]
    return report.holders[0]


def growth_of(
    step: Callable[[], object], roots: dict[str, Any], before: int = 20, after: int = 10
) -> GraphGrowth:
    """Return the change of the only holder over several calls of `step`."""
    for _ in range(before):
        step()
    first = find_graph_holders(roots)
    for _ in range(after):
        step()
    now = only(find_graph_holders(roots))
    assert now.pattern == only(first).pattern
    return now.growth_since(only(first), after)


@pytest.mark.parametrize("kind", [RSSM, HalfDetached])
def test_an_undetached_online_state_is_named_with_its_depth(kind: type[RSSM]) -> None:
    roots = {"world_model": SimpleNamespace(rssm=kind(ACTION_SIZE, TOKEN_SIZE, TINY))}
    act(roots["world_model"].rssm, 30)
    holder = only(find_graph_holders(roots))
    assert holder.pattern == "world_model.rssm._state.deter"
    assert holder.paths == ("world_model.rssm._state.deter", "world_model.rssm._state.stoch")
    assert holder.steps_deep == 30 and not holder.freed and not holder.estimated
    names = {name for name, uses in holder.params if uses == 30}
    assert names == {name for name, _ in holder.params} and "world_model.rssm.core.deter_in.0.weight" in names
    text = holder.text()
    assert text.startswith(f"world_model.rssm._state.deter -> {holder.nodes:,} autograd nodes, which keep 0.")
    assert "MB of tensors; they use world_model.rssm.core." in text
    assert text.endswith(" 30 times; also held by ..._state.stoch")


def test_the_graph_of_an_undetached_state_grows_by_the_same_at_each_step_and_is_pinned() -> None:
    rssm = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY)
    growth = growth_of(lambda: act(rssm, 1), {"rssm": rssm})
    again = growth_of(lambda: act(rssm, 1), {"rssm": rssm}, before=7, after=3)
    assert growth.pinned and growth.nodes_per_step > 50 and growth.bytes_per_step > 4_000
    assert (again.nodes_per_step, again.bytes_per_step) == (growth.nodes_per_step, growth.bytes_per_step)
    assert (
        growth.text().startswith("+") and "bytes of tensors per step; the oldest node stays" in growth.text()
    )


def test_a_half_detached_state_is_named_and_holds_less() -> None:
    whole, half = (kind(ACTION_SIZE, TOKEN_SIZE, TINY) for kind in (RSSM, StochDetached))
    of_whole, of_half = (growth_of(lambda r=r: act(r, 1), {"rssm": r}) for r in (whole, half))
    assert only(find_graph_holders({"rssm": half})).paths == ("rssm._state.deter",)
    assert of_half.pinned and 0 < of_half.nodes_per_step < of_whole.nodes_per_step
    assert 0 < of_half.bytes_per_step < of_whole.bytes_per_step


def test_a_state_that_is_kept_only_every_fortieth_step_is_named() -> None:
    rssm, workflow, steps = (
        RSSM(ACTION_SIZE, TOKEN_SIZE, TINY),
        SimpleNamespace(last=torch.zeros(())),
        iter(range(999)),
    )

    def step() -> None:
        seen = act(rssm, 1)
        if next(steps) % 40 == 0:
            workflow.last = 0.9 * workflow.last + seen.posterior.deter.mean()
        rssm.set_online_state(None)

    growth = growth_of(step, {"workflow": workflow, "rssm": rssm}, before=41, after=400)
    assert growth.pinned
    only_kept = find_graph_holders({"workflow": workflow, "rssm": rssm})
    assert only(only_kept).paths[0] == "workflow.last" and only(only_kept).steps_deep == 12


def test_stored_losses_are_a_skeleton_after_backward_and_whole_before() -> None:
    net, store = (
        nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)),
        SimpleNamespace(losses=[], total=[]),
    )
    roots = {"net": net, "store": store}

    def step(backward: bool, retain: bool = False) -> None:
        loss = net(torch.randn(64, 8)).square().mean()
        if backward:
            loss.backward(retain_graph=retain)
        (store.losses if backward else store.total).append({"loss": loss})

    for _ in range(10):
        step(backward=True)
    skeleton = only(find_graph_holders(roots))
    assert skeleton.freed and skeleton.nbytes == 0 and skeleton.num_paths == 10
    assert skeleton.pattern == "store.losses[*]['loss']" and skeleton.paths[9] == "store.losses[9]['loss']"
    assert re.search(
        r"^store\.losses\[0\]\['loss'\] -> \d+ autograd nodes, with tensors freed by backward; "
        r"they use net\.\S+ 10 times; also held by \S+losses\[1\]\['loss'\], .* and 5 more$",
        skeleton.text(),
    )
    now = replace(skeleton, nodes=skeleton.nodes + 40)
    assert now.growth_since(skeleton, 10).text() == "+4.0 nodes per step; the oldest node stays"
    for _ in range(10):
        step(backward=False)
    report = find_graph_holders(roots)
    assert [holder.pattern for holder in report.holders] == [
        "store.total[*]['loss']",
        "store.losses[*]['loss']",
    ]
    assert report.holders[0].nbytes > 10 * 64 * 32 * 4 and not report.holders[0].freed
    store.losses.clear()
    store.total.clear()
    step(backward=True, retain=True)
    assert only(find_graph_holders(roots)).nbytes > 64 * 32 * 4


def test_a_running_mean_of_undetached_losses_is_a_chain() -> None:
    net, metrics = nn.Linear(8, 1), {"ema": torch.zeros(())}

    def step() -> None:
        metrics["ema"] = 0.99 * metrics["ema"] + 0.01 * net(torch.randn(64, 8)).mean()

    growth = growth_of(step, {"net": net, "metrics": metrics})
    holder = only(find_graph_holders({"net": net, "metrics": metrics}))
    assert (
        holder.paths == ("metrics['ema']",) and holder.pattern == "metrics['ema']" and holder.steps_deep == 30
    )
    assert growth.pinned and growth.nodes_per_step > 0


def test_a_hook_that_is_registered_at_each_step_is_named() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def step() -> None:
        kept = net(torch.randn(2, 4)).sum()
        net[0].register_forward_hook(lambda *_: kept.detach() and None)

    for _ in range(5):
        step()
    holder = only(find_graph_holders({"net": net}))
    assert holder.num_paths == 5 and holder.pattern == "net.0._forward_hooks[*].<closure kept>"
    assert holder.paths[0].startswith("net.0._forward_hooks[")
    assert holder.paths[0].endswith("].<closure kept>")


def test_a_hook_on_a_parameter_is_named() -> None:
    net = nn.Linear(4, 4)
    kept = net(torch.randn(2, 4)).sum()
    net.weight.register_hook(lambda gradient: gradient * kept.detach())
    assert only(find_graph_holders({"net": net})).paths[0].startswith("net.weight._backward_hooks[")


def test_an_exception_that_is_kept_names_the_variable_of_its_frame() -> None:
    weight, last = nn.Parameter(torch.ones(3)), SimpleNamespace(error=None)

    def boom() -> None:
        z = weight.exp()
        raise ValueError(f"a loss of shape {tuple(z.shape)}")

    try:
        boom()
    except ValueError as error:
        last.error = error
    holder = only(find_graph_holders({"last": last}))
    assert holder.paths == ("last.error.<traceback boom:z>",)


def test_closures_and_queues_are_named() -> None:
    weight = nn.Parameter(torch.ones(3))

    def callback(t: Tensor) -> Callable[[], Tensor]:
        return lambda: t

    logger = SimpleNamespace(waiting=queue.Queue())
    logger.waiting.put(("loss", weight.exp()))
    roots = {"weight": weight, "callbacks": [callback(weight.exp())], "logger": logger}
    paths = {holder.paths[0] for holder in find_graph_holders(roots).holders}
    assert paths == {"callbacks[0].<closure t>", "logger.waiting.queue[0][1]"}


@pytest.mark.filterwarnings(CREATE_GRAPH)
def test_a_gradient_with_a_graph_is_named() -> None:
    net = nn.Linear(3, 1)
    net(torch.randn(5, 3)).square().sum().backward(create_graph=True)
    assert "net.weight.grad" in only(find_graph_holders({"net": net})).paths
    net.zero_grad()


def test_a_node_that_is_kept_without_its_tensor_is_named() -> None:
    weight = nn.Parameter(torch.ones(100))
    holder = only(find_graph_holders({"weight": weight, "kept": [weight.exp().exp().grad_fn]}))
    assert holder.paths == ("kept[0]",) and holder.nbytes == 800


def test_clean_loops_hold_no_graph() -> None:
    rssm, store = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY), SimpleNamespace(losses=[], detached=deque(maxlen=4))
    act(rssm, 5, detach=True)
    with torch.no_grad():
        act(rssm, 5)
    for _ in range(5):
        loss = rssm.prior_logits(torch.randn(2, TINY.deter)).square().mean()
        loss.backward()
        store.losses.append(loss.item())
        store.detached.append(loss.detach())
    report = find_graph_holders({"rssm": rssm, "store": store})
    assert report.holders == ()


def test_a_window_of_truncated_backpropagation_moves_and_is_bounded() -> None:
    rssm, count = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY), iter(range(999))

    def step() -> None:
        if next(count) % 8 == 0 and rssm._state is not None:
            rssm._state = rssm._state.detach()
        act(rssm, 1)

    growth = growth_of(step, {"rssm": rssm}, before=20, after=16)
    assert not growth.pinned and growth.nodes_per_step == 0 and growth.bytes_per_step == 0
    assert growth.text() == "+0.0 nodes per step; the oldest nodes are released"


def test_a_bounded_queue_of_losses_moves_and_is_bounded() -> None:
    net, recent = nn.Linear(8, 1), deque(maxlen=4)
    growth = growth_of(lambda: recent.append(net(torch.randn(64, 8)).mean()), {"net": net, "recent": recent})
    assert not growth.pinned and growth.nodes_per_step == 0 and growth.bytes_per_step == 0


def test_graphs_that_meet_are_reported_together_and_those_of_one_parameter_are_not() -> None:
    weight = nn.Parameter(torch.ones(1000))
    shared = weight.exp()
    meeting = {"weight": weight, "a": [shared.exp()], "b": [shared.sin()]}
    holder = only(find_graph_holders(meeting))
    assert holder.paths == ("a[0]", "b[0]") and holder.nbytes == 2 * 4000
    apart = find_graph_holders({"weight": weight, "a": [weight.exp()], "b": [weight.exp().exp()]})
    assert [(a.paths, a.nbytes) for a in apart.holders] == [(("b[0]",), 8000), (("a[0]",), 4000)]


def test_a_carried_state_is_named_before_the_tensors_that_it_depends_on() -> None:
    weight, policy, agent = nn.Parameter(torch.ones(4)), SimpleNamespace(), SimpleNamespace()
    agent.state = torch.zeros(())
    for _ in range(30):
        policy.logits, policy.outputs = weight.exp(), [weight.exp(), weight.exp()]
        loss = policy.logits.sum() + sum(each.sum() for each in policy.outputs)
        agent.state = agent.state * 0.9 + loss
    holder = only(find_graph_holders({"weight": weight, "policy": policy, "agent": agent}))
    assert holder.paths[0] == "agent.state" and holder.num_paths == 4
    assert holder.steps_deep == 90


def test_a_carried_state_is_named_before_the_tensors_that_depend_on_it() -> None:
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 2)
    policy, agent = SimpleNamespace(), SimpleNamespace(hidden=torch.zeros(1, 4))
    for _ in range(30):
        agent.hidden = cell(torch.randn(1, 3), agent.hidden)
        policy.logits = head(agent.hidden)
        policy.probs = policy.logits.softmax(-1)
    holder = only(find_graph_holders({"policy": policy, "agent": agent}))
    assert holder.paths[0] == "agent.hidden" and holder.num_paths == 3


@pytest.mark.parametrize("entries", [3, 100, 1_500])
def test_a_list_of_shallow_values_is_named_before_the_deep_graph_of_the_current_step(entries: int) -> None:
    weight, kept, current = nn.Parameter(torch.ones(4)), list[Tensor](), SimpleNamespace()
    roots = {"weight": weight, "current": current, "kept": kept}
    patterns = set[str]()
    for step in range(entries):
        features = weight.exp()
        kept.append(features.sum())
        current.loss = features
        for _ in range(30):
            current.loss = current.loss.exp().log()
        if step in (entries // 2, entries - 1):
            patterns.add(only(find_graph_holders(roots)).pattern)
    assert patterns == {"kept[*]"}


def test_a_list_of_losses_is_named_before_the_old_tensor_that_all_of_them_use() -> None:
    weight = nn.Parameter(torch.ones(4))
    start = weight.exp()
    losses = [(start * number).sum() for number in range(20)]
    holder = only(find_graph_holders({"weight": weight, "start": start, "losses": losses}))
    assert holder.pattern == "losses[*]"


def test_a_persistent_object_is_named_before_the_variables_of_the_step_that_changed_it() -> None:
    cell, roots = nn.GRUCell(3, 4), {"agent": SimpleNamespace(hidden=torch.zeros(1, 4))}
    for _ in range(30):
        roots["update"] = cell(torch.randn(1, 3), roots["agent"].hidden)
        roots["agent"].hidden = roots["update"] * 0.5
    found = walk(roots)
    for variables, name in (((), "update"), (("update",), "agent.hidden")):
        assert only(measure_graphs(found.leaves, variables=variables)).paths[0] == name


def test_bytes_count_each_storage_once_and_not_what_the_roots_hold_anyway() -> None:
    weight, data = nn.Parameter(torch.ones(1000)), torch.ones(1000)
    # This saves both factors.
    product = [weight * data]
    assert only(find_graph_holders({"weight": weight, "data": data, "kept": product})).nbytes == 0
    assert only(find_graph_holders({"weight": weight, "kept": product})).nbytes == 4000
    assert only(find_graph_holders({"kept": product})).nbytes == 8000
    views = [weight.exp().view(10, 100)[i].exp().sum() for i in range(10)]
    assert only(find_graph_holders({"weight": weight, "kept": views})).nbytes == 10 * (4000 + 400)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mask, ctx.pieces = torch.ones(500), [torch.ones(250)]
        ctx.save_for_backward(x.clone())
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * gradient


def test_what_a_custom_function_keeps_on_its_context_is_counted() -> None:
    weight = nn.Parameter(torch.ones(1000))
    kept = [Doubles.apply(weight)]
    assert only(find_graph_holders({"weight": weight, "kept": kept})).nbytes == 4000 + 2000 + 1000
    kept[0].sum().backward()
    freed = only(find_graph_holders({"weight": weight, "kept": kept}))
    assert freed.nbytes == 2000 + 1000 and freed.freed


def test_no_unpack_hook_runs_and_nothing_is_recomputed() -> None:
    calls: list[str] = []

    def pack(x: Tensor) -> tuple[str, list[Tensor]]:
        return "packed", [x.clone()]

    def unpack(packed: tuple[str, list[Tensor]]) -> Tensor:
        calls.append("unpack")
        return packed[1][0]

    def block(x: Tensor) -> Tensor:
        calls.append("block")
        return x.exp().exp()

    weight = nn.Parameter(torch.ones(1000))
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        hooked = weight.exp()
    checkpointed = checkpoint(block, weight, use_reentrant=False)
    calls.clear()
    report = find_graph_holders({"weight": weight, "hooked": [hooked], "checkpointed": [checkpointed]})
    assert calls == []
    assert {holder.pattern: holder.nbytes for holder in report.holders} == {
        "hooked[*]": 4000,
        "checkpointed[*]": 0,
    }


def test_what_a_graph_holds_is_free_when_it_goes() -> None:
    if not in_use_source().startswith("mallinfo2"):
        pytest.skip("needs an exact count of what is allocated")
    weight = nn.Parameter(torch.ones(100_000))
    kept = [weight.exp().sin()]
    for _ in range(50):
        kept[0] = kept[0].exp().sum() * kept[0].sin()
    holder = only(find_graph_holders({"weight": weight, "kept": kept}))
    head, before = kept[0].nbytes, in_use_bytes()
    kept.clear()
    assert before - in_use_bytes() == pytest.approx(holder.nbytes + head, rel=0.01)


def test_a_sample_of_a_long_list_is_extrapolated_and_marked() -> None:
    weight = nn.Parameter(torch.ones(10))
    holder = only(find_graph_holders({"weight": weight, "losses": [weight.exp().sum() for _ in range(5000)]}))
    assert holder.estimated and holder.text().startswith("losses[0] -> about ")
    assert holder.num_paths == 5000 and holder.nbytes == 5000 * 40
    assert holder.nodes == pytest.approx(10_000, rel=1e-3) and holder.steps_deep == 5000


@pytest.mark.parametrize("newest", [0, 1])
def test_a_variable_of_the_current_step_does_not_hide_the_growth_of_a_long_list(newest: int) -> None:
    weight = nn.Parameter(torch.ones(10))
    outputs = [weight.exp() for _ in range(5000 + newest)]
    losses = [each.sum() for each in outputs]
    # The newest loss shares a node with the variable.
    holder = only(find_graph_holders({"weight": weight, "losses": losses, "output": outputs[-1]}))
    assert holder.estimated and holder.nodes == pytest.approx(2 * len(losses), rel=2e-3)
    assert holder.nbytes == pytest.approx(40 * (len(losses) - 1), rel=2e-3)


def test_a_sum_of_a_long_list_counts_the_nodes_of_the_list_once() -> None:
    weight = nn.Parameter(torch.ones(10))
    losses = [weight.exp().sum() for _ in range(3000)]
    holder = only(
        find_graph_holders({"weight": weight, "losses": losses, "total": torch.stack(losses).sum()})
    )
    assert holder.nodes == 2 * len(losses) + 3


def test_groups_of_a_long_list_that_share_nodes_are_extrapolated() -> None:
    weight, losses = nn.Parameter(torch.ones(10)), list[Tensor]()
    for _ in range(3000):
        output = weight.exp()
        losses += [output.sum(), output.mean()]
    holder = only(find_graph_holders({"weight": weight, "losses": losses}))
    # A loss outside the sample shares a node with one inside, which is therefore counted for both.
    assert holder.estimated and 1.5 * len(losses) <= holder.nodes <= 2.01 * len(losses)


def test_a_chain_in_a_long_list_is_counted_through_its_last_element() -> None:
    weight, states = nn.Parameter(torch.ones(10)), [torch.zeros(10)]
    for _ in range(3000):
        states.append((states[-1] + weight).sin())
    report = find_graph_holders({"weight": weight, "states": states[1:]})
    assert only(report).nodes == 2 * 3000 + 1 and not only(report).estimated


def test_limits_end_a_scan_and_are_reported() -> None:
    weight = nn.Parameter(torch.ones(10))
    x = weight
    for _ in range(50):
        x = x.sin()
    assert not find_graph_holders({"kept": [x]}).truncated
    few = find_graph_holders({"kept": [x]}, max_nodes=10)
    assert few.truncated and only(few).nodes == 10
    assert find_graph_holders({"kept": [x]}, max_objects=1).truncated


def test_a_thousand_scans_allocate_nothing_that_stays() -> None:
    if not in_use_source().startswith("mallinfo2"):
        pytest.skip("needs an exact count of what is allocated")
    rssm = RSSM(ACTION_SIZE, TOKEN_SIZE, TINY)
    act(rssm, 2)
    counts = []
    for _ in range(4):
        for _ in range(300):
            find_graph_holders({"rssm": rssm})
        gc.collect()
        counts.append(in_use_bytes())
    # One retained object per scan would be 4,800 bytes each time. The first scan fills malloc's caches.
    assert min(after - before for before, after in pairwise(counts)) < 1000


def test_a_view_whose_base_was_changed_in_place_is_no_obstacle() -> None:
    base = torch.zeros(4, requires_grad=True) * 1
    views = base.unbind()
    base.add_(1)
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = views[0].grad_fn
    [holder] = find_graph_holders({"views": views, "base": base}).holders
    assert holder.paths == ("base",)
