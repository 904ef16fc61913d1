from __future__ import annotations

import math

import pytest
import torch

from sslengine.distributed.ranks import rank
from sslengine.errors import NonFiniteLossError, TrainingError
from sslengine.monitor.store import MetricStore
from tests.ranks import RankPool


def test_steps_come_out_in_order_and_once() -> None:
    ledger = MetricStore().losses
    for iteration, value in enumerate((3.0, 2.0)):
        ledger.record(torch.tensor(value, requires_grad=True), iteration, batch_size=4)
    assert [(e.iteration, e.parts) for e in ledger.drain()] == [
        (0, {"loss": 3.0}),
        (1, {"loss": 2.0}),
    ]
    assert ledger.drain() == []
    assert ledger.phase_losses == [12.0, 8.0]
    assert ledger.phase_mean() == 2.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_step_is_named_with_its_parts_and_samples(bad: float) -> None:
    ledger = MetricStore(replay="sslengine replay 'my runs'", name="{}.png".format).losses
    ledger.record({"loss": torch.tensor(1.0), "a": torch.tensor(0.5)}, 40, 2)
    ledger.record(
        {"loss": torch.tensor(bad), "a": torch.tensor(bad)},
        41,
        2,
        samples=torch.tensor([7, 5, 7, 5, 9, 8, 3, 1]),
    )
    ledger.record({"loss": torch.tensor(bad), "a": torch.tensor(1.0)}, 42, 2)
    with pytest.raises(NonFiniteLossError) as error:
        ledger.flush()
    text = str(error.value)
    assert f"iteration 42 is not finite: loss {bad}, a {bad}" in text
    assert error.value.iteration == 42  # as the lines of metrics.jsonl count steps
    assert "images, of this rank: 1.png, 3.png, 5.png, 7.png and 2 more." in text
    assert "sslengine replay 'my runs'" in text


def test_a_phase_and_what_nobody_read_yet_are_in_the_state() -> None:
    one, two = MetricStore().losses, MetricStore().losses
    one.record({"loss": torch.tensor(1.0), "a": torch.tensor(2.0)}, 6, 3)
    two.load_state_dict(one.state_dict())
    assert two.drain() == one.drain() != []
    two.record(torch.tensor(5.0), 7, 1)
    assert two.phase_mean() == 2.0
    two.load_state_dict({"phase_losses": [], "phase_samples": 0})  # of an older checkpoint
    assert two.drain() == []


def _many_steps(bad: int | None = None) -> object:
    """Ranks' losses r + step, with a part but in one step, and shares that change."""
    ledger = MetricStore().losses
    for step in range(9):
        value = torch.tensor(float(rank() + step))
        part = value * (math.nan if step == bad and rank() == 1 else 2.0)
        loss = value if step == 3 else {"loss": value, "double": part}
        share = (0.75, 0.25)[rank()] if step < 5 else 0.5
        ledger.record(loss, step, 4, share, samples=torch.tensor([step]))
    try:
        return [tuple(entry) for entry in ledger.drain()], ledger.phase_mean()
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
    ledger = MetricStore().losses
    ledger.record({"loss": torch.ones(()), f"of {rank()}": torch.ones(())}, 0, 4, share=0.5)
    try:
        ledger.drain()
    except TrainingError as error:
        return str(error)
    return ""


def test_losses_of_other_names_are_reported_on_all_ranks(two_ranks: RankPool) -> None:
    first, second = two_ranks.run(_other_parts)
    assert first == second
    assert "their losses must have the same parts" in first
