"""Means are mathematically correct, and the metrics keep no reference to their inputs."""

import gc
import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from reverie.utils.metrics import AttachedMetricError, MetricMeans, PhaseTimer

from ..gpu import synchronizing_is


def clock_showing(*seconds: float) -> Iterator[float]:
    return iter(seconds)


def test_the_mean_is_the_arithmetic_mean() -> None:
    means = MetricMeans()
    for loss, updates in ((1.0, 4), (2.0, 5), (6.0, 9)):
        means.add({"loss": torch.tensor(loss), "updates": torch.tensor(updates)})
    assert means.flush() == {"loss": 3.0, "updates": 6.0}


def test_the_mean_of_many_small_numbers_beside_a_large_one_is_exact() -> None:
    values = [1e7, *torch.rand(5000).tolist()]
    means = MetricMeans()
    for value in values:
        means.add({"loss": torch.tensor(value)})
    rounded = [torch.tensor(value).item() for value in values]
    assert means.flush()["loss"] == pytest.approx(math.fsum(rounded) / len(rounded), rel=1e-13)


def test_each_metric_is_averaged_over_the_calls_that_gave_it() -> None:
    means = MetricMeans()
    means.add({"model": torch.tensor(1.0)})
    means.add({"model": torch.tensor(3.0), "actor": torch.tensor(10.0)})
    means.add({"actor": torch.tensor(30.0), "return": torch.tensor(7.0)})
    assert means.flush() == {"model": 2.0, "actor": 20.0, "return": 7.0}


def test_metrics_of_every_dtype_are_taken() -> None:
    means = MetricMeans()
    means.add(
        {
            "half": torch.tensor(0.5, dtype=torch.bfloat16),
            "count": torch.tensor(3),
            "flag": torch.tensor(True),
            "double": torch.tensor(0.1, dtype=torch.float64),
        }
    )
    assert means.flush() == {"half": 0.5, "count": 3.0, "flag": 1.0, "double": 0.1}


def test_a_flush_forgets_everything_before_it() -> None:
    means = MetricMeans()
    means.add({"loss": torch.tensor(100.0), "return": torch.tensor(100.0)})
    means.flush()
    assert means.flush() == {}
    means.add({"loss": torch.tensor(1.0)})
    assert means.flush() == {"loss": 1.0}


def test_a_tensor_overwritten_after_the_call_counts_with_its_value_at_the_call() -> None:
    # Outputs of a CUDA graph behave like this.
    static_output = torch.tensor(1.0)
    means = MetricMeans()
    means.add({"loss": static_output})
    static_output.fill_(5.0)
    means.add({"loss": static_output})
    assert means.flush() == {"loss": 3.0}


def test_a_nan_is_not_hidden_by_the_mean() -> None:
    means = MetricMeans()
    means.add({"loss": torch.tensor(float("nan")), "kl": torch.tensor(1.0)})
    means.add({"loss": torch.tensor(1.0), "kl": torch.tensor(1.0)})
    result = means.flush()
    assert math.isnan(result["loss"])
    assert result["kl"] == 1.0


@pytest.mark.parametrize(
    "tensor",
    [torch.ones((), requires_grad=True), torch.ones(2, requires_grad=True).sum()],
    ids=["parameter", "loss"],
)
def test_a_tensor_with_a_graph_is_refused_by_name_and_nothing_is_added(tensor: Tensor) -> None:
    means = MetricMeans()
    with pytest.raises(AttachedMetricError, match=r"Metric `loss/actor` requires grad .*`\.detach\(\)`"):
        means.add({"loss/image": torch.tensor(1.0), "return": torch.tensor(1.0), "loss/actor": tensor})
    assert means.flush() == {}


def test_a_tensor_with_a_dimension_is_refused_by_name_and_shape() -> None:
    with pytest.raises(ValueError, match=r"`loss` must be a scalar, got a tensor of shape \(16, 64\)"):
        MetricMeans().add({"loss": torch.zeros(16, 64)})


def test_adding_never_reads_a_value_on_the_host() -> None:
    means = MetricMeans()
    # A meta tensor has no value, so reading one would raise.
    for _ in range(3):
        means.add({"loss": torch.empty((), device="meta"), "kl": torch.empty((), device="meta")})


def test_saved_sums_go_on() -> None:
    means = MetricMeans()
    means.add({"loss": torch.tensor(1.0), "kl": torch.tensor(2.0)})
    state = means.state_dict()
    means.load_state_dict(state, torch.device("cpu"))
    means.add({"loss": torch.tensor(3.0)})
    assert means.flush() == {"loss": 2.0, "kl": 2.0}


@pytest.mark.gpu
def test_on_cuda_adding_never_waits_and_flushing_waits_once() -> None:
    means = MetricMeans()
    values = {name: torch.ones((), device="cuda") for name in "abc"}
    torch.cuda.synchronize()
    with synchronizing_is("error"):
        for _ in range(10):
            means.add(values)
            means.add({"a": values["a"]})
    with synchronizing_is("warn"), pytest.warns(UserWarning, match="synchronizing") as waits:
        result = means.flush()
    # One for each set of names.
    assert len(waits) == 2
    assert result == {"a": 1.0, "b": 1.0, "c": 1.0}


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def test_ten_thousand_calls_keep_no_tensor_alive() -> None:
    means = MetricMeans()
    means.add({"loss": torch.tensor(0.0), "kl": torch.tensor(0.0)})
    before = live_tensors()
    given: list[weakref.ref[Tensor]] = []
    metrics: dict[str, Tensor] = {}
    for number in range(10_000):
        metrics = {"loss": torch.tensor(float(number)), "kl": torch.tensor(1.0)}
        given.extend(map(weakref.ref, metrics.values()))
        means.add(metrics)
    metrics.clear()
    assert [ref for ref in given if ref() is not None] == []
    assert live_tensors() == before
    means.flush()
    assert live_tensors() == before - 1


def test_phases_share_the_wall_time_between_two_flushes() -> None:
    times = clock_showing(100.0, 101.0, 103.0, 104.0, 109.0, 110.0)
    watch = PhaseTimer("collect", "update", "log", clock=times.__next__)
    # From 101 to 103.
    with watch("collect"):
        pass
    # From 104 to 109.
    with watch("update"):
        pass
    expected = {"time/collect_fraction": 0.2, "time/update_fraction": 0.5, "time/log_fraction": 0.0}
    # At 110, after 10 seconds.
    assert watch.flush() == expected


def test_the_same_phase_adds_up_and_a_flush_starts_anew() -> None:
    times = clock_showing(0.0, 0.0, 1.0, 2.0, 4.0, 4.0, 4.0, 6.0, 8.0)
    watch = PhaseTimer("update", clock=times.__next__)
    with watch("update"):
        pass
    with watch("update"):
        pass
    assert watch.flush() == {"time/update_fraction": 0.75}
    with watch("update"):
        pass
    assert watch.flush() == {"time/update_fraction": 0.5}


def test_the_time_of_a_phase_that_raises_is_counted() -> None:
    times = clock_showing(0.0, 0.0, 3.0, 4.0)
    watch = PhaseTimer("update", clock=times.__next__)
    with pytest.raises(RuntimeError), watch("update"):
        raise RuntimeError
    assert watch.flush() == {"time/update_fraction": 0.75}


def test_a_phase_without_a_name_given_before_is_refused() -> None:
    with pytest.raises(KeyError, match="udpate"), PhaseTimer("update")("udpate"):
        pass
