from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.errors import TrainingError
from sslengine.monitor import over_ranks
from sslengine.monitor import store as module
from sslengine.monitor.store import KEPT, MetricStore, Series, current, make_current
from tests.ranks import RankPool


def _read(store: MetricStore) -> dict[str, float]:
    store.read()
    return store.take_scalars()


def test_metrics_are_there_once_they_are_read() -> None:
    store = MetricStore()
    store.put_scalar("age", 3)
    store.put_scalar("tau", torch.tensor([0.5], requires_grad=True))
    with pytest.raises(TrainingError, match="no metric 'tau' has been read in a train phase yet"):
        store.history("tau")
    assert _read(store) == {"age": 3.0, "tau": 0.5}
    assert store.latest() == {"age": 3.0, "tau": 0.5}
    assert _read(store) == {}  # nothing new
    with pytest.raises(TrainingError, match="Did you mean 'tau'"):
        store.history("taus")


def test_a_tensor_is_kept_as_it_was() -> None:
    store = MetricStore()
    value = torch.tensor(1.0)
    store.put_scalar("x", value)
    value.fill_(9.0)
    assert _read(store) == {"x": 1.0}


def test_numbers_of_all_kinds_keep_their_order() -> None:
    store = MetricStore()
    for value in (1, torch.tensor(2.0), 3.0, torch.tensor(4), torch.tensor(5.0), np.float32(6)):
        store.put_scalar("x", value)
    store.put_scalar("y", torch.tensor(True))
    store.read()
    assert store.history("x").values() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert store.history("y").latest() == 1.0


def test_what_is_written_is_smoothed_by_each_metrics_window() -> None:
    store = MetricStore()
    for value in (5.0, 1.0, 9.0, 2.0):
        store.put_scalar("smooth", value, window=3)
        store.put_scalar("plain", value, window=1)
    assert _read(store) == {"smooth": 2.0, "plain": 2.0}
    assert store.latest_with_smoothing() == {"smooth": 2.0, "plain": 2.0}
    assert store.latest_with_smoothing(2) == {"smooth": 5.5, "plain": 2.0}
    assert store.history("smooth").median(4) == 3.5
    assert store.history("smooth").average(2) == 5.5
    assert store.history("smooth").global_average() == 17 / 4


def test_putting_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the host waited for the device")

    store = MetricStore()
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, forbidden)
    store.put_scalar("x", torch.ones(()), reduce="mean")
    store.put_image("y", torch.ones(2, 2))
    store.put_histogram("z", torch.ones(2))
    with pytest.raises(AssertionError, match="waited"):
        store.read()


def test_one_copy_for_all_metrics_and_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    real = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda t: (copies.append(t.numel()), real(t))[1])
    store = MetricStore()
    for step in range(3):
        for name in ("a", "b"):
            store.put_scalar(name, torch.tensor(float(step)))
        store.put_scalar("count", torch.tensor(step))
        store.losses.record({"loss": torch.tensor(1.0), "part": torch.tensor(2.0)}, step, 4)
    store.read()
    assert copies == [15]
    assert store.history("b").values() == [0.0, 1.0, 2.0]
    assert store.history("count").values() == [0.0, 1.0, 2.0]
    assert store.history("loss.part").values() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "arguments", "told"),
    [
        ("x", torch.zeros(2), {}, "expected one number, got a tensor of shape"),
        ("x", "many", {}, "expected one number, got 'many'"),
        ("x", 1.0, {"reduce": "avg"}, "reduce must be one of mean, max, sum or None, got 'avg'"),
        ("x", 1.0, {"window": 0}, "window must be 1 or more"),
        ("loss", 1.0, {}, "the engine itself logs 'loss'"),
        ("loss.align", 1.0, {}, "the engine itself logs"),
        ("../x", 1.0, {}, "cannot be the name of a metric"),
        ("/x", 1.0, {}, "cannot be the name of a metric"),
        ("", 1.0, {}, "cannot be the name of a metric"),
    ],
)
def test_what_cannot_be_put(name: str, value: Any, arguments: Any, told: str) -> None:
    with pytest.raises(TrainingError, match=told):
        MetricStore().put_scalar(name, value, **arguments)


def test_one_name_is_reduced_in_one_way() -> None:
    store = MetricStore()
    store.put_scalar("x", 1.0, reduce="max")
    with pytest.raises(TrainingError, match="with reduce='max' and with reduce=None"):
        store.put_scalar("x", 1.0)


def test_pictures_are_taken_once_and_the_newest_counts() -> None:
    store = MetricStore()
    for value in (0.0, 1.0):
        store.put_image("view", torch.full((2, 2), value))
        store.put_histogram("weights", torch.tensor([value, 2.0]), bins=2)
    store.put_histogram("nothing", torch.tensor([math.nan]))
    images, histograms = store.take_pictures().read()
    assert images["view"].tolist() == [[255, 255], [255, 255]]
    (histogram,) = histograms.values()
    assert (histogram.low, histogram.high, histogram.counts) == (1.0, 2.0, [1, 1])
    assert store.take_pictures().read() == ({}, {})


def test_a_test_phase_has_metrics_of_its_own_and_they_are_means() -> None:
    store = MetricStore()
    store.put_scalar("x", 7.0)
    store.read()
    store.take_scalars()
    for values in ((1.0, 2.0, 6.0), (4.0,)):
        store.start_phase("test", begins=True)
        for value in values:
            store.put_scalar("x", value)
        assert _read(store) == {"x": sum(values) / len(values)}
        store.start_phase("train", begins=True)
    assert store.latest() == {"x": 7.0}
    assert _read(store) == {}


def test_losses_are_in_the_history_and_not_written_twice() -> None:
    store = MetricStore()
    for value in (3.0, 1.0):
        loss = {"loss": torch.tensor(value), "align": torch.tensor(2 * value)}
        store.losses.record(loss, 0, batch_size=4)
    assert _read(store) == {}
    assert store.history("loss").average() == 2.0
    assert store.history("loss.align").latest() == 2.0


def test_state_goes_round_with_what_was_not_read_yet() -> None:
    one, two = MetricStore(), MetricStore()
    for value in (5.0, 1.0, 9.0):
        one.put_scalar("x", torch.tensor(value), window=3)
        one.put_scalar("seconds", value, keep=False)
    two.put_scalar("forgotten", 1.0)
    two.load_state_dict(one.state_dict())
    assert one.state_dict()["series"]["train"].keys() == {"x"}
    for store in (one, two):
        store.put_scalar("x", 2.0, window=3)
    assert _read(two) == {"x": 2.0}
    assert _read(one) == {"x": 2.0, "seconds": 5.0}
    assert one.state_dict() == two.state_dict()


def test_the_current_store_is_the_runs() -> None:
    store = MetricStore()
    make_current(None)  # a test that was interrupted may have left one
    current().put_scalar("x", 1.0)
    current().put_image("x", torch.zeros(2, 2))
    current().put_histogram("x", torch.zeros(2))
    assert module._NOWHERE.state_dict()["series"] == {"train": {}, "test": {}}
    assert current().take_pictures() == ({}, {})
    make_current(store)
    try:
        current().put_scalar("x", 2.0)
        assert _read(store) == {"x": 2.0}
    finally:
        make_current(None)
    assert current() is not store


# ---- several ranks


def _reduced() -> dict[str, float]:
    store = MetricStore()
    for step in (0.0, 10.0):
        mine = torch.tensor(step + rank())
        for reduce in ("mean", "max", "sum"):
            store.put_scalar(reduce, mine, window=1, reduce=reduce)
        store.put_scalar("own", mine, window=1)
    for only in range(rank()):
        store.put_scalar(f"only {only}", 1.0)  # without `reduce`, ranks may differ
    store.put_image("view", torch.zeros(2, 2))
    store.read()
    found = store.take_scalars()
    return {**found, "images": float(len(store.take_pictures().images))}


def test_metrics_of_all_ranks(two_ranks: RankPool) -> None:
    both = {"mean": 10.5, "max": 11.0, "sum": 21.0}
    assert two_ranks.run(_reduced) == [
        {**both, "own": 10.0, "images": 1.0},
        {**both, "own": 11.0, "images": 0.0, "only 0": 1.0},
    ]


def _unequal() -> str:
    store = MetricStore()
    store.put_scalar("both", 1.0, reduce="max")
    store.put_scalar(f"of {rank()}", 1.0, reduce="max")
    try:
        store.read()
    except TrainingError as error:
        return str(error)
    return "nothing was told"


def _exchanges() -> tuple[list[int], list[int], dict[str, float]]:
    """What a read with losses and metrics of all ranks sends, and what it copies to the host."""
    sent: list[int] = []
    copied: list[int] = []
    store, real, to_list = MetricStore(), over_ranks.sum_in_place, Tensor.tolist
    over_ranks.sum_in_place = lambda t: (sent.append(t.numel()), real(t))[1]
    Tensor.tolist = lambda t: (copied.append(t.numel()), to_list(t))[1]  # type: ignore[method-assign]
    try:
        for step in range(3):
            store.put_scalar("mean", torch.tensor(float(step + rank())), window=1, reduce="mean")
            store.put_scalar("max", step + rank(), window=1, reduce="max")
            store.losses.record(torch.tensor(1.0), step, 4, share=0.5)
        store.read()
    finally:
        over_ranks.sum_in_place, Tensor.tolist = real, to_list  # type: ignore[method-assign]
    return sent, copied, store.take_scalars()


def test_one_all_reduce_and_one_copy_for_a_read(two_ranks: RankPool) -> None:
    for sent, copied, found in two_ranks.run(_exchanges):
        assert sent == copied == [1024 + 2]
        assert found == {"mean": 2.5, "max": 3.0}


def test_names_that_differ_are_told_on_all_ranks_and_nobody_hangs(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(_unequal)
    assert "of 1" in second
    assert "ranks have put different metrics" in first


NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(NUMBERS, st.integers(1, 80))
def test_windows_are_numpys(values: list[float], window: int) -> None:
    series = Series(window)
    series.extend(values)
    last = values[-window:]
    assert series.median() == series.median(window) == pytest.approx(float(np.median(last)))
    assert series.average() == pytest.approx(float(np.mean(last)), abs=1e-6)
    assert series.global_average() == pytest.approx(float(np.mean(values)), abs=1e-6)
    assert (series.latest(), series.values(window), len(series)) == (values[-1], last, len(values))


def test_the_mean_is_of_all_values_and_the_rest_of_those_that_are_kept() -> None:
    series = Series(window=2)
    series.extend([float(n) for n in range(KEPT + 5)])
    assert series.values()[0] == 5.0
    assert len(series) == KEPT + 5
    assert series.global_average() == (KEPT + 4) / 2


def test_a_larger_window_keeps_more() -> None:
    series = Series(window=2)
    series.extend([float(n) for n in range(KEPT)])
    series.window = KEPT + 50
    series.extend([1.0] * 50)
    assert len(series.values()) == KEPT + 50


def test_a_nan_is_not_smoothed_away() -> None:
    series = Series(window=3)
    series.extend((1.0, math.nan, 2.0))
    assert math.isnan(series.median())
    assert series.median(1) == 2.0


def test_state_goes_round() -> None:
    series = Series(window=3)
    series.extend((4.0, 1.0, 7.0, 3.0))
    again = Series.restore(series.state_dict())
    for each in (series, again):
        each.extend((2.0,))
    assert again.state_dict() == series.state_dict()
    assert again.median() == 3.0
