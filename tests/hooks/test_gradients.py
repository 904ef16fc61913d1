from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.engine import loop
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook
from sslengine.hooks.gradients import ClipGradients, FreezeParameters
from tests.engine.runs import make_task
from tests.engine.tasks import at, begin


class Grads(Hook):
    """Copies of all gradients, at each backward."""

    def __init__(self) -> None:
        self.seen: list[list[Tensor | None]] = []

    def on_backward(self, task: Any) -> None:
        grads = [each.grad for each in task.base_model.parameters()]
        self.seen.append([None if each is None else each.clone() for each in grads])


def _run(*hooks: Hook, steps: int = 1, model: nn.Module | None = None, **changes: Any) -> None:
    """Steps of two layers, with gradients that are long."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    batches = [{"data": torch.ones(2, 3) * 100}] * steps
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loss = lambda output, target: output.pow(2).sum()  # noqa: E731
    task = begin(batches, model, loss, *hooks, optimizer=optimizer, **changes)
    for _ in range(steps):
        task.step()


def _changed(hook: Hook, *before: Hook, **changes: Any) -> tuple[list[Any], list[Any]]:
    """The gradients of a step, before the hook and after it."""
    first, last = Grads(), Grads()
    _run(*before, first, hook, last, **changes)
    return first.seen[0], last.seen[0]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_frozen_for_as_many_updates(accumulate: int) -> None:
    grads = Grads()
    freeze = FreezeParameters([("module.1.weight", 2)])
    _run(freeze, grads, steps=6, OPTIMIZER__accumulate=accumulate)
    frozen = 2 * accumulate
    assert [each[2] is None for each in grads.seen] == [True] * frozen + [False] * (6 - frozen)
    assert all(each[3] is not None for each in grads.seen)


class TrunkAfterSteps(Hook):
    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes]] = []
        self.statistics: list[float] = []

    def on_step(self, task: Any) -> None:
        if task.train:
            trunk = task.base_model.trunk
            self.seen.append((task.phase.epoch, digest_of_parameters(trunk)))
            means = [each for name, each in trunk.named_buffers() if "running_mean" in name]
            self.statistics.append(float(means[0].sum()))


def digest_of_parameters(module: nn.Module) -> bytes:
    return b"".join(each.detach().numpy().tobytes() for each in module.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_frozen_for_whole_epochs(accumulate: int, tmp_path: Path) -> None:
    """Of any length, also where the last update has fewer batches."""
    trunk = TrunkAfterSteps()
    task = make_task(
        tmp_path, [FreezeParameters(epochs=[("trunk.*", 1)]), trunk], OPTIMIZER__accumulate=accumulate,
        OPTIMIZER__num_epochs=2, DATA__TRAIN__DATA_LIMIT=10, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2,
    )  # fmt: skip
    before = digest_of_parameters(task.base_model.trunk)
    loop.run(task)
    assert [epoch for epoch, _ in trunk.seen] == [0] * 5 + [1] * 5
    assert {found for epoch, found in trunk.seen if epoch == 0} == {before}
    assert len({found for epoch, found in trunk.seen if epoch == 1}) == 5 - (accumulate - 1)
    assert before not in [found for epoch, found in trunk.seen if epoch == 1][accumulate - 1 :]
    # The statistics of its batch norms follow the images all the same, as docs/command.md says.
    assert len(set(trunk.statistics)) == 10


def test_a_name_that_the_model_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"no parameter '1.wieght'. Did you mean '1.weight'"):
        _run(FreezeParameters([("module.1.wieght", 3)]))


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_clipping_is_torchs_own(norm_type: float) -> None:
    before, after = _changed(ClipGradients(0.5, norm_type))
    reference = [nn.Parameter(torch.zeros_like(each)) for each in before]
    for parameter, grad in zip(reference, before, strict=True):
        parameter.grad = grad
    torch.nn.utils.clip_grad_norm_(reference, 0.5, norm_type)
    for parameter, grad in zip(reference, after, strict=True):
        assert torch.equal(parameter.grad, grad)  # type: ignore[arg-type]


def test_clipping_waits_for_the_whole_group() -> None:
    hooks = Grads(), ClipGradients(0.5, 2.0), Grads()
    _run(*hooks, steps=2, OPTIMIZER__accumulate=2)
    (first, second), (same, clipped) = hooks[0].seen, hooks[2].seen
    assert all(map(torch.equal, first, same))
    assert not any(map(torch.equal, second, clipped))


def authors_clip(grads: list[Tensor], clip: float) -> None:
    """What DINO's code does to each gradient, one after the other."""
    for grad in grads:
        length = grad.double().square().sum().sqrt().item()
        grad *= min(1.0, clip / (length + 1e-6))


def test_each_gradient_by_itself() -> None:
    def shorten(task: Any) -> None:  # one that is short enough stays as it is
        task.base_model[0].weight.grad.mul_(1e-7)

    before, after = _changed(
        ClipGradients(3.0, 2.0, per_parameter=True), at("on_backward", shorten)
    )
    authors_clip(before, 3.0)
    for expected, grad in zip(before, after, strict=True):
        torch.testing.assert_close(grad, expected)
    lengths = [grad.norm().item() for grad in after]
    assert lengths[0] < 1.0
    assert lengths[1:] == pytest.approx([3.0] * 3)


class Parts(nn.Module):
    """Names of a learner: a trunk, two heads, a method, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(2))
        self.trunk = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.loss = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x[:, :2] + self.token)
        return torch.cat([self.heads[0](x), 1e-9 * self.heads[1](x), self.loss(x)])


@pytest.mark.parametrize("norm_type", [2.0, 1.0])
def test_each_module_by_itself(norm_type: float) -> None:
    """As DINOv2's authors do for backbone and heads; each parameter is in one module."""
    first, last = Grads(), Grads()
    hook = ClipGradients(0.5, norm_type, per_module=True)
    _run(first, hook, last, model=Parts())
    parts = {"token": [0], "trunk": [1, 2, 3, 4], "heads.0": [5, 6], "heads.1": [7, 8],
             "loss": [9, 10]}  # fmt: skip
    before, after = (
        {name: [each.seen[0][n].flatten().double() for n in part] for name, part in parts.items()}  # type: ignore[union-attr]
        for each in (first, last)
    )
    for name in parts:
        length = torch.linalg.vector_norm(torch.cat(before[name]), norm_type).item()
        assert (length < 0.5) == (name == "heads.1")  # which stays as it is
        for old, new in zip(before[name], after[name], strict=True):
            factor = min(1.0, 0.5 / (length + 1e-6))
            torch.testing.assert_close(new, old * factor, rtol=1e-5, atol=1e-7)
