from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.errors import NonFiniteLossError
from sslengine.monitor.loss_ledger import LossLedger
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
