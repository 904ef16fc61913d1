"""Beside tests/contrib/test_multi_optimizer.py, which trains with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.contrib.multi_optimizer import Owner, SeveralOptimizers
from sslengine.distributed.ranks import rank
from sslengine.errors import CheckpointError, TrainingError
from sslengine.optim.build import ScheduledOptimizer
from sslengine.precision import Precision
from tests.ranks import RankPool


def owner(name: str, parameters: list[nn.Parameter], *losses: str, lr: float = 0.1) -> Owner:
    inner = torch.optim.SGD(parameters, lr=lr)
    return Owner(name, ScheduledOptimizer(inner, [{}]), parameters, losses)


class Case:
    """Losses a = x y, b = x z, c = y z at (2, 3, 5)."""

    def __init__(self, *owners: tuple[str, str, tuple[str, ...]], lr: float = 0.1) -> None:
        self.values = {n: nn.Parameter(torch.tensor(v)) for n, v in zip("xyz", (2.0, 3.0, 5.0))}
        self.optimizers = SeveralOptimizers(
            [owner(n, [self.values[k] for k in its], *losses, lr=lr) for n, its, losses in owners]
        )

    def backward(self, precision: Precision | None = None) -> None:
        x, y, z = self.values.values()
        losses = {"a": x * y, "b": x * z, "c": y * z}
        self.optimizers.backward(precision or Precision(), losses, 1.0)
        self.optimizers.finish_backward(over_ranks=False)

    def grads(self) -> list[Any]:
        return [None if p.grad is None else p.grad.item() for p in self.values.values()]

    def now(self) -> list[float]:
        return [p.item() for p in self.values.values()]


def test_hooks_see_the_sum_and_each_owner_its_own() -> None:
    case = Case(("one", "xy", ("a",)), ("two", "xz", ("b", "c")))
    case.backward()
    # da/dx + d(b + c)/dx = 3 + 5; da/dy = 2, not 2 + 5; d(b + c)/dz = 2 + 3
    assert case.grads() == [8.0, 2.0, 5.0]
    case.optimizers.step(Precision())
    assert case.now() == pytest.approx([2 - 0.3 - 0.5, 3 - 0.2, 5 - 0.5])


def test_batches_of_a_group_add_up_and_the_next_starts_anew() -> None:
    case = Case(("one", "xy", ("a",)), ("two", "xz", ("b", "c")))
    case.backward()
    case.backward()
    assert case.grads() == [16.0, 4.0, 10.0]
    case.optimizers.zero_grad()
    assert case.grads() == [None, None, None]
    case.backward()
    assert case.grads() == [8.0, 2.0, 5.0]


def test_a_parameter_that_no_followed_loss_reaches_stays() -> None:
    case = Case(("one", "xyz", ("a",)), ("two", "z", ("a",)))
    case.backward()
    assert case.grads() == [3.0, 2.0, None]
    case.optimizers.step(Precision())
    assert case.now()[2] == 5.0


def test_one_backward_for_each_set_of_losses() -> None:
    passes: list[tuple[int, bool]] = []

    class Counting(Precision):
        def backward(self, loss: Tensor, inputs: Any = None, retain_graph: bool = False) -> None:
            passes.append((len(inputs), retain_graph))
            super().backward(loss, inputs, retain_graph)

    case = Case(("one", "x", ("a",)), ("two", "yz", ("b", "c")), ("three", "y", ("a",)))
    case.backward(Counting())
    assert passes == [(2, True), (2, False)]


def test_one_scaler_serves_all_and_skips_what_overflowed() -> None:
    """Each of them is unscaled once, also a parameter of two owners."""
    precision = Precision(torch.device("cpu"), torch.float16, {"init_scale": 8.0})
    case = Case(("one", "xy", ("a",)), ("two", "xz", ("b", "c")))
    case.backward(precision)
    assert case.grads() == [64.0, 16.0, 40.0]
    case.optimizers.step(precision)
    assert case.now() == pytest.approx([2 - 0.3 - 0.5, 3 - 0.2, 5 - 0.5])
    case.optimizers.zero_grad()
    before = case.now()
    case.backward(precision)
    case.optimizers._sets["a",].gradients[case.values["x"]].fill_(torch.inf)  # type: ignore[union-attr]
    case.optimizers.step(precision)
    assert precision.scaler.get_scale() == 4.0
    x, y, z = case.now()
    assert y == before[1]
    assert (x, z) != (before[0], before[2])


def test_who_asks_for_the_one_is_told() -> None:
    with pytest.raises(TrainingError, match=r"reads `task.optimizer.inner`, but there are 2"):
        _ = Case(("one", "xy", ("a",)), ("two", "z", ("b",))).optimizers.inner


def test_a_checkpoint_of_other_optimizers() -> None:
    state = Case(("one", "xyz", ("a",)), ("two", "x", ("b",))).optimizers.state_dict()
    with pytest.raises(
        CheckpointError, match=r"has the optimizers one, two, but this run has one, tree"
    ):
        Case(("one", "xyz", ("a",)), ("tree", "x", ("b",))).optimizers.load_state_dict(state)


def _reduced(number: int) -> list[Any]:
    case = Case(("one", "xy", ("a",)), ("two", "xz", ("b", "c")))
    with torch.no_grad():
        case.values["x"].mul_(1 + rank())
    case.backward()
    case.optimizers.finish_backward(over_ranks=True)
    case.optimizers.step(Precision())
    return case.grads()


def test_ranks_take_the_mean() -> None:
    with RankPool(2) as pool:
        # By x: 3 for one, 5 for two, on both ranks. By y: x = 2 and 4. By z: x + y = 5 and 7.
        assert pool.run(_reduced, 0) == [[5.0, 3.0, 6.0]] * 2
