from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sslengine.models.trunks.steps import Step, run, run_in_parts


class Counting(nn.Module):
    """x + 1, and how often that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(x) * self.weight + 1


def row(length: int) -> tuple[nn.ModuleList, list[Step]]:
    modules = nn.ModuleList(Counting() for _ in range(length))
    return modules, [(str(index), module) for index, module in enumerate(modules)]


def calls(modules: nn.ModuleList) -> list[int]:
    return [module.calls for module in modules]


def test_run_gives_what_is_wanted_and_stops_there() -> None:
    modules, steps = row(4)
    x = torch.tensor(0.5)
    found = run(steps, x, {"0", "2"})
    assert set(found) == {"0", "2"}
    expected = torch.sin(torch.sin(torch.sin(x) + 1) + 1) + 1
    torch.testing.assert_close(found["2"], expected)
    assert calls(modules) == [1, 1, 1, 0]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 99])
def test_parts_are_computed_again_in_backward(parts: int) -> None:
    modules, steps = row(5)
    x = torch.tensor(0.5)
    found = run_in_parts(steps, x, {"1", "3"}, parts, owner=modules)
    assert calls(modules) == [1, 1, 1, 1, 0]
    (found["1"] + found["3"]).backward()
    # Recomputation ends early where the rest of a part is not needed for its gradients.
    assert all(count == 2 for count in calls(modules)[:3])
    recomputed = [module.weight.grad for module in modules]

    plain, plain_steps = row(5)
    again = run(plain_steps, x, {"1", "3"})
    (again["1"] + again["3"]).backward()
    assert recomputed == [module.weight.grad for module in plain]


def test_stages_are_taken_apart() -> None:
    modules, _ = row(4)
    stage = nn.Sequential(*modules)
    found = run_in_parts([("stage", stage)], torch.tensor(0.5), {"stage"}, 2, owner=stage)
    torch.testing.assert_close(found["stage"], stage(torch.tensor(0.5)))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_move_once(momentum: float | None) -> None:
    norm, plain = nn.BatchNorm1d(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    for _ in range(2):
        x = torch.randn(8, 3, requires_grad=True)
        out = run_in_parts([("out", norm)], x, {"out"}, 1, owner=norm)["out"]
        out.square().sum().backward()
        plain(x.detach())
    assert norm.momentum == momentum
    assert int(norm.num_batches_tracked) == 2
    for ours, expected in zip(norm.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, expected)
