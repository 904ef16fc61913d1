from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sslengine.distributed.collectives import Pending
from sslengine.distributed.ranks import rank
from sslengine.errors import NonFiniteLossError
from sslengine.monitor import loss_ledger
from sslengine.monitor.loss_ledger import LossLedger
from sslengine.monitor.store import MetricStore
from tests.ranks import RankPool


def test_steps_come_out_in_order_and_once() -> None:
    ledger = LossLedger()
    for iteration, value in enumerate((3.0, 2.0)):
        ledger.record(torch.tensor(value, requires_grad=True), iteration, batch_size=4)
    assert [(e.iteration, e.parts) for e in ledger.drain()] == [
        (0, {"loss": 3.0}),
        (1, {"loss": 2.0}),
    ]
    assert ledger.drain() == []
    assert ledger.phase_losses == [12.0, 8.0]
    assert ledger.phase_mean() == 2.5


def test_the_mean_weighs_batches_by_their_size() -> None:
    ledger = LossLedger()
    ledger.record(torch.tensor(1.0), 0, batch_size=3)
    ledger.record(torch.tensor(5.0), 1, batch_size=1)
    assert ledger.phase_mean() == 2.0
    ledger.start_phase()
    assert ledger.phase_mean() is None


def test_parts_are_kept_by_name() -> None:
    ledger = LossLedger()
    ledger.record({"loss": torch.tensor(3.0), "align": torch.tensor(1.0)}, 0, 2)
    (entry,) = ledger.drain()
    assert entry.parts == {"loss": 3.0, "align": 1.0}


def test_recording_reads_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the host waited for the device")

    ledger = LossLedger()
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(Tensor, name, forbidden)
    ledger.record({"loss": torch.ones(()), "part": torch.ones(())}, 0, 2, share=0.5)
    with pytest.raises(AssertionError, match="waited"):
        ledger.flush()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_its_parts_and_samples(bad: float) -> None:
    ledger = LossLedger()
    ledger.record({"loss": torch.tensor(1.0), "a": torch.tensor(0.5)}, 40, 2)
    ledger.record(
        {"loss": torch.tensor(bad), "a": torch.tensor(bad)},
        41,
        2,
        samples=torch.tensor([7, 5, 7, 5]),
    )
    ledger.record({"loss": torch.tensor(bad), "a": torch.tensor(1.0)}, 42, 2)
    with pytest.raises(NonFiniteLossError) as error:
        ledger.flush()
    text = str(error.value)
    assert f"iteration 41 is not finite: loss {bad}, a {bad}" in text
    assert "samples in that step: 5, 7." in text


def test_a_guard_that_is_off_lets_it_pass() -> None:
    ledger = LossLedger(check_finite=False)
    ledger.record(torch.tensor(math.nan), 0, 1)
    assert math.isnan(ledger.drain()[0].parts["loss"])


def test_state_goes_round_in_mid_phase() -> None:
    one = LossLedger()
    one.record(torch.tensor(1.0), 0, 3)
    two = LossLedger()
    two.load_state_dict(one.state_dict())
    two.record(torch.tensor(5.0), 1, 1)
    assert two.phase_mean() == 2.0


def test_entries_that_nobody_read_yet_are_in_the_state() -> None:
    one, two = LossLedger(), LossLedger()
    one.record({"loss": torch.tensor(1.0), "a": torch.tensor(2.0)}, 6, 3)
    two.load_state_dict(one.state_dict())
    assert two.drain() == one.drain()
    two.load_state_dict({"phase_losses": [], "phase_samples": 0})  # of an older checkpoint
    assert two.drain() == []


def test_losses_go_into_the_histories() -> None:
    store = MetricStore()
    for value in (1.0, 4.0):
        store.losses.record({"loss": torch.tensor(value), "a": torch.tensor(-value)}, 0, 3)
    store.losses.flush()
    assert store.history("loss").values() == [1.0, 4.0]
    assert store.history("loss.a").values() == [-1.0, -4.0]


def _two_steps(bad_on_rank_1: bool) -> object:
    ledger = LossLedger()
    local = torch.tensor(float(rank() + 1))
    # Rank 0 holds 3 of the 4 images: the mean over images is (3 * 1 + 1 * 2) / 4.
    ledger.record(local, 0, batch_size=4, share=(0.75, 0.25)[rank()])
    if bad_on_rank_1 and rank() == 1:
        local = local * math.nan
    ledger.record(local, 1, batch_size=4, share=0.5)
    try:
        return [entry.parts["loss"] for entry in ledger.drain()]
    except NonFiniteLossError as error:
        return str(error).split(":")[0]


def test_ranks_average_over_all_their_images(two_ranks: RankPool) -> None:
    assert two_ranks.run(_two_steps, False) == [[1.25, 1.5]] * 2


def test_one_ranks_nan_stops_all_at_the_same_step(two_ranks: RankPool) -> None:
    assert two_ranks.run(_two_steps, True) == ["the loss of iteration 1 is not finite"] * 2


# ---- GATHER_METRIC_PERIOD


def _by_period(period: int, steps: int, bad: int | None = None) -> object:
    """Ranks' losses r + step, with a part in some steps; and how many collectives it took."""
    made: list[int] = []
    real = loss_ledger.start_sum

    def start_sum(tensor: Tensor) -> Pending:
        made.append(tensor.numel())
        return real(tensor)

    ledger = LossLedger(period=period)
    loss_ledger.start_sum = start_sum
    try:
        for step in range(steps):
            value = torch.tensor(float(rank() + step), dtype=torch.float32)
            part = value * (math.nan if step == bad and rank() == 1 else 2.0)
            loss = value if step == 3 else {"loss": value, "double": part}
            ledger.record(loss, step, 4, share=(0.75, 0.25)[rank()], samples=torch.tensor([step]))
        return [tuple(entry) for entry in ledger.drain()], len(made), ledger.phase_mean()
    except NonFiniteLossError as error:
        return str(error).split(". No checkpoint")[0]
    finally:
        loss_ledger.start_sum = real


@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_a_period_changes_how_many_collectives_there_are_and_no_mean(
    two_ranks: RankPool, steps: int
) -> None:
    every, _ = two_ranks.run(_by_period, 1, steps)
    for period in (2, 3, 20):
        one, two = two_ranks.run(_by_period, period, steps)
        assert one == two
        assert (one[0], one[2]) == (every[0], every[2])
        assert every[1] == steps
        # Each group but the last is full, or ends where the parts become others (step 3, 4).
        lengths = [min(steps, 3), min(1, max(0, steps - 3)), max(0, steps - 4)]
        assert one[1] == sum(math.ceil(length / period) for length in lengths)
    assert every[0][0] == (0, {"loss": 0.25, "double": 0.5}, 4)


@pytest.mark.parametrize("period", [1, 4])
def test_a_bad_part_is_named_by_step_whatever_the_period(two_ranks: RankPool, period: int) -> None:
    told = two_ranks.run(_by_period, period, 9, 6)
    assert all("iteration 6 is not finite: loss 6.25, double nan" in each for each in told)
    assert all("samples in that step: 6." in each for each in told)


def test_alone_there_is_nothing_to_gather() -> None:
    ledger = LossLedger(period=5)
    ledger.record(torch.tensor(2.0), 0, 1)
    assert ledger.drain()[0].parts == {"loss": 2.0}
