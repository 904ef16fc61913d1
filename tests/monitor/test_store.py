from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sslengine.distributed.ranks import rank
from sslengine.engine import loop
from sslengine.errors import NonFiniteLossError, TrainingError
from sslengine.hooks.events import Hook
from sslengine.monitor import store as module
from sslengine.monitor.store import (
    Column,
    Histogram,
    MetricStore,
    Series,
    count,
    current,
    make_current,
    make_image,
    read_columns,
    read_histogram,
)
from sslengine.testing.runs import build, resolve_small
from tests.ranks import RankPool


def _read(store: MetricStore) -> dict[str, float]:
    store.read()
    return store.take_scalars()


def test_metrics_are_there_once_they_are_read() -> None:
    store = MetricStore()
    store.put_scalar("age", 3)
    store.put_scalar("tau", torch.tensor([0.5], requires_grad=True))
    with pytest.raises(TrainingError, match="'tau'"):
        store.history("tau")
    assert _read(store) == {"age": 3.0, "tau": 0.5}
    assert store.latest() == {"age": 3.0, "tau": 0.5}
    assert _read(store) == {}  # nothing new
    with pytest.raises(TrainingError, match="Did you mean 'tau'"):
        store.history("taus")


def test_numbers_of_all_kinds_keep_their_order_and_are_copies() -> None:
    store, changing = MetricStore(), torch.tensor(2.0)
    large = 2**24 + 1  # float32 does not have it
    numbers = (1, changing, 3.0, torch.tensor(large), torch.tensor([5.0]), np.float32(6))
    for value in (*numbers, torch.tensor(True)):
        store.put_scalar("x", value)
    changing.fill_(9.0)
    store.read()
    assert store.history("x").values() == [1.0, 2.0, 3.0, large, 5.0, 6.0, 1.0]


def test_putting_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the host waited for the device")

    store = MetricStore()
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, forbidden)
    store.put_scalar("x", torch.ones(()), reduce="mean")
    store.put_image("y", torch.ones(2, 2))
    store.put_histogram("z", torch.ones(2))
    store.record({"loss": torch.ones(()), "part": torch.ones(())}, 0, 2, share=0.5)
    with pytest.raises(AssertionError, match="waited"):
        store.read()


def test_one_copy_for_all_metrics_and_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    real = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda t: (copies.append(t.numel()), real(t))[1])
    store = MetricStore()
    for step in range(3):
        store.put_scalar("a", torch.tensor(float(step)))
        store.put_scalar("count", torch.tensor(step))
        store.record({"loss": torch.tensor(1.0), "part": torch.tensor(2.0)}, step, 4)
    assert _read(store).keys() == {"a", "count"}  # the losses are written by themselves
    assert copies == [12]
    assert store.history("count").values() == [0.0, 1.0, 2.0]
    assert store.history("loss").average() == 1.0
    assert store.history("loss.part").values() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("x", 1.0, {"reduce": "avg"}),
        ("once reduced", 1.0, {}),
        ("loss", 1.0, {}),
        ("loss.align", 1.0, {}),
        ("../x", 1.0, {}),
        ("/x", 1.0, {}),
        ("", 1.0, {}),
    ],
)
def test_what_cannot_be_put(name: str, value: Any, arguments: Any) -> None:
    store = MetricStore()
    store.put_scalar("once reduced", 1.0, reduce="max")
    with pytest.raises(TrainingError, match=repr(name)):
        store.put_scalar(name, value, **arguments)


def test_pictures_are_taken_once_and_the_newest_counts() -> None:
    store = MetricStore()
    for value in (0.0, 1.0):
        store.put_image("view", torch.full((2, 2), value))
        store.put_histogram("weights", torch.tensor([value, 2.0]), bins=2)
    view = torch.ones(2, 2)
    store.put_image("view", view)
    view.fill_(0.0)  # it is copied
    store.put_histogram("empty", torch.zeros(0))
    store.put_histogram("nothing", torch.tensor([math.nan]))
    images, histograms = store.take_pictures()
    assert images["view"].tolist() == [[255, 255], [255, 255]]
    (histogram,) = histograms.values()
    assert (histogram.low, histogram.high, histogram.counts) == (1.0, 2.0, [1, 1])
    assert store.take_pictures() == ({}, {})


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


def test_state_goes_round_with_what_was_not_read_yet() -> None:
    one, two = MetricStore(), MetricStore()
    for value in (5.0, 1.0, 9.0):
        one.put_scalar("x", torch.tensor(value), window=3)
        one.put_scalar("seconds", value, keep=False)
    two.put_scalar("forgotten", 1.0)
    two.load_state_dict(one.state_dict())
    assert one.state_dict()["figures"]["series"]["train"].keys() == {"x"}
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
    assert module._NOWHERE.state_dict()["figures"]["series"] == {"train": {}, "test": {}}
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
    return {**found, "images": float(len(store.take_pictures()[0]))}


def test_metrics_of_all_ranks(two_ranks: RankPool) -> None:
    both = {"mean": 10.5, "max": 11.0, "sum": 21.0}
    assert two_ranks.run(_reduced) == [
        {**both, "own": 10.0, "images": 1.0},
        {**both, "own": 11.0, "images": 0.0, "only 0": 1.0},
    ]


Puts = dict[str, tuple[str, list[float]]]  # by name: reduce, values


def _exchanged(puts: list[Puts]) -> Any:
    """The last rank puts tensors where the others put numbers."""
    mine = {
        name: Column(reduce, [torch.tensor(v, dtype=torch.float64) if rank() else v for v in put])
        for name, (reduce, put) in puts[rank()].items()
    }
    try:
        return read_columns(mine)
    except TrainingError as error:
        return str(error)


@pytest.mark.parametrize("count", [1, 900])
def test_value_by_value(two_ranks: RankPool, count: int) -> None:
    """By numpy, in any order; 900 values of each kind do not fit into what is sent first."""
    random = np.random.default_rng(0)
    tables = {reduce: random.random((2, count)) for reduce in ("mean", "max", "sum")}
    puts: list[Puts] = [
        {reduce: (reduce, tables[reduce][int(n)].tolist()) for reduce in sorted(tables, reverse=n)}
        for n in (False, True)
    ]
    for found in two_ranks.run(_exchanged, puts):
        for reduce, table in tables.items():
            expected = getattr(np, reduce)(table, axis=0)
            np.testing.assert_allclose(found[reduce], expected, rtol=1e-15)


@pytest.mark.parametrize(
    "second",
    [
        {},
        {"a": ("max", [1.0]), "b": ("max", [1.0])},
        {"a": ("sum", [1.0])},
        {"a": ("max", [1.0, 2.0])},
        {"a": ("max", [1.0] * 2000)},
    ],
)
def test_all_ranks_are_told_of_what_one_has_put_otherwise(
    two_ranks: RankPool, second: Puts
) -> None:
    for text in two_ranks.run(_exchanged, [{"a": ("max", [1.0])}, second]):
        assert "ranks have put different metrics" in text


# ---- histories

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


# ---- losses


def test_steps_come_out_in_order_and_once() -> None:
    store = MetricStore()
    for iteration, value in enumerate((3.0, 2.0)):
        store.record(torch.tensor(value, requires_grad=True), iteration, batch_size=4)
    assert [(e.iteration, e.parts) for e in store.take_losses()] == [
        (0, {"loss": 3.0}),
        (1, {"loss": 2.0}),
    ]
    assert store.take_losses() == []
    assert store.phase_losses == [12.0, 8.0]
    assert store.phase_mean() == 2.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_its_parts_and_samples(bad: float) -> None:
    store = MetricStore(replay="sslengine replay 'my runs'", name="{}.png".format)
    store.record({"loss": torch.tensor(1.0), "a": torch.tensor(0.5)}, 40, 2)
    store.record(
        {"loss": torch.tensor(bad), "a": torch.tensor(bad)},
        41,
        2,
        samples=torch.tensor([7, 5, 7, 5, 9, 8, 3, 1]),
    )
    store.record({"loss": torch.tensor(bad), "a": torch.tensor(1.0)}, 42, 2)
    with pytest.raises(NonFiniteLossError) as error:
        store.flush()
    text = str(error.value)
    assert f"iteration 42 is not finite: loss {bad}, a {bad}" in text
    assert error.value.iteration == 42  # as the lines of metrics.jsonl count steps
    assert "images, of this rank: 1.png, 3.png, 5.png, 7.png and 2 more." in text
    assert "sslengine replay 'my runs'" in text


def test_a_phase_and_what_nobody_read_yet_are_in_the_state() -> None:
    one, two = MetricStore(), MetricStore()
    one.record({"loss": torch.tensor(1.0), "a": torch.tensor(2.0)}, 6, 3)
    two.load_state_dict(one.state_dict())
    assert two.take_losses() == one.take_losses() != []
    two.record(torch.tensor(5.0), 7, 1)
    assert two.phase_mean() == 2.0


def _many_steps(bad: int | None = None) -> object:
    """Ranks' losses r + step, with a part but in one step, and shares that change."""
    store = MetricStore()
    for step in range(9):
        value = torch.tensor(float(rank() + step))
        part = value * (math.nan if step == bad and rank() == 1 else 2.0)
        loss = value if step == 3 else {"loss": value, "double": part}
        share = (0.75, 0.25)[rank()] if step < 5 else 0.5
        store.record(loss, step, 4, share, samples=torch.tensor([step]))
    try:
        return [tuple(entry) for entry in store.take_losses()], store.phase_mean()
    except NonFiniteLossError as error:
        return str(error).split(". No checkpoint")[0]


def test_many_steps_are_averaged_at_once(two_ranks: RankPool) -> None:
    one, two = two_ranks.run(_many_steps)
    assert one == two
    means = [step + (0.25 if step < 5 else 0.5) for step in range(9)]
    expected = [(step, {"loss": mean, "double": 2 * mean}, 4) for step, mean in enumerate(means)]
    expected[3] = (3, {"loss": 3.25}, 4)
    assert one == (expected, sum(means) / 9)


def test_a_bad_part_is_named_by_step_on_all_ranks(two_ranks: RankPool) -> None:
    for reported in two_ranks.run(_many_steps, 6):
        assert "iteration 7 is not finite: loss 6.5, double nan" in reported
        assert "images, of this rank: 6." in reported


def _other_parts() -> str:
    store = MetricStore()
    store.record({"loss": torch.ones(()), f"of {rank()}": torch.ones(())}, 0, 4, share=0.5)
    try:
        store.take_losses()
    except TrainingError as error:
        return str(error)
    return ""


def test_losses_of_other_names_are_reported_on_all_ranks(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(_other_parts)
    assert first == second
    assert "losses must have the same" in first


# ---- images and histograms


def _counted(values: Tensor, bins: int) -> Histogram:
    return read_histogram(count(values, bins))


@pytest.mark.parametrize("bins", [1, 7, 64])
def test_bins_are_numpys(bins: int) -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(bins))
    histogram = _counted(values.view(50, 10), bins)
    counts, edges = np.histogram(values.numpy(), bins)
    assert histogram.counts == counts.tolist()
    assert histogram.edges == pytest.approx(edges.tolist(), abs=1e-6)
    assert histogram.sum == pytest.approx(float(values.double().sum()))
    assert histogram.sum_of_squares == pytest.approx(float((values.double() ** 2).sum()))


def test_equal_values_are_one_bin_and_what_is_not_finite_is_in_none() -> None:
    assert sum(_counted(torch.full((5,), 2.0), 4).counts) == 5
    some = torch.tensor([0.0, torch.nan, 1.0, torch.inf, -torch.inf])
    assert _counted(some, 2).counts == [1, 1]
    assert _counted(torch.full((3,), torch.nan), 2).counts == [0, 0]


COLOURS = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (COLOURS, COLOURS),
        (torch.from_numpy(COLOURS).permute(2, 0, 1), COLOURS),
        (torch.from_numpy(COLOURS[..., :1]), COLOURS[..., 0]),
        (torch.tensor([[0.0, 0.5], [1.0, 7.0]]), np.array([[0, 128], [255, 255]], np.uint8)),
        (np.array([[0.0, 1.0]]), np.array([[0, 255]], np.uint8)),
        (torch.tensor([[-1.0, torch.nan]]), np.array([[0, 0]], np.uint8)),
    ],
)
def test_images_have_8_bits_and_colours_last(given: Any, expected: Any) -> None:
    image = make_image(torch.as_tensor(given))
    assert image.dtype == np.uint8
    assert np.array_equal(image, expected)


# ---- what ranks send one another for a log line


EVERY, STEPS = 4, 12
Sent = tuple[str, str, int]  # operation, dtype, numbers


class _Sends(TorchDispatchMode, Hook):
    """Last of all hooks: what is sent after step n, by services, is in `after[n]`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.after: list[Counter[Sent]] = [Counter()]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "c10d":
            sent = [each for each in tree_leaves(args) if isinstance(each, Tensor)][-1]
            name = func.overloadpacket.__name__
            self.after[-1][name, str(sent.dtype), sent.numel()] += 1
        return func(*args, **(kwargs or {}))

    def on_forward(self, task: Any) -> None:
        task.storage.put_scalar("mean", torch.tensor(1.0 + rank()), reduce="mean")
        task.storage.put_scalar("own", 1.0 + rank())

    def on_step(self, task: Any) -> None:
        self.after.append(Counter())


def _sent() -> Sequence[Counter[Sent]]:
    resolved = resolve_small([], {
        "LOG_FREQUENCY": EVERY, "DISTRIBUTED.NUM_PROC_PER_NODE": 2,
        "DATA.TRAIN.DATA_LIMIT": 8 * STEPS, "OPTIMIZER.num_iterations": STEPS,
        "HOOKS.COLLAPSE_SIGNS": True, "HOOKS.PERF_STATS.MONITOR_PERF_STATS": True,
        "HOOKS.PERF_STATS.PERF_STAT_FREQUENCY": EVERY,
    })  # fmt: skip
    sends = _Sends()
    with tempfile.TemporaryDirectory() as folder, sends:
        loop.run(build(resolved, Path(folder), [sends]))
    return sends.after


def test_a_line_costs_one_gather_of_numbers_and_no_object(two_ranks: RankPool) -> None:
    line = Counter({("_allgather_base_", "torch.float64", 1024): 1})
    for after in two_ranks.run(_sent):
        # The first steps: DDP arranges its buckets. After the last one the phase ends.
        step = after[EVERY + 1]
        assert step
        assert "torch.uint8" not in {dtype for _, dtype, _ in step}  # a pickled object
        for made in range(EVERY, STEPS):
            assert after[made] - step == (line if made % EVERY == 0 else Counter()), made
            assert not step - after[made], made
