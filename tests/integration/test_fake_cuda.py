"""A train step makes nothing on the host, copies nothing and waits for nothing on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sslengine.config.resolve import resolve
from sslengine.services.order import Services
from sslengine.task.task import SelfSupervisionTask
from tests.config.recipes import resolved
from tests.integration.test_configs import QUICK, TWO_STEPS

fake_cuda = pytest.importorskip("tests.fake_cuda", reason="this torch has no FakeTensorMode")

# The others take some seconds each.
OFTEN = ("swav", "mae")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in QUICK],
)
def test_a_step_of_every_quickstart_stays_on_the_gpu(name: str, tmp_path: Path) -> None:
    run = resolve([f"config=quickstart/{name}", *TWO_STEPS, "config.LOG_FREQUENCY=1000"])
    fake_cuda.two_steps(
        SelfSupervisionTask(
            run.config, tmp_path, torch.device("cpu"), hooks=[], services=Services()
        )
    )


class Faulty(nn.Module):
    """What a loss may do that costs a wait or a copy, by name."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        match self.fault:
            case "reads":
                return output.sum() * output.detach().sum().item()
            case "chooses":
                return output[output > 0].sum()
            case "makes":
                return (output * torch.arange(float(output.shape[1])).to(output.device)).sum()
            case "mixes":
                return (output + torch.ones(output.shape[1])).sum()
            case "copies":
                mask = torch.zeros_like(output)
                mask[0, 0] = True
                return (output * mask).sum()
        return output.sum()


@pytest.mark.parametrize("fault", ["reads", "chooses", "makes", "mixes", "copies", ""])
def test_what_it_finds(fault: str, tmp_path: Path) -> None:
    name = f"{__name__}:Faulty"
    config = resolved(
        LOSS={"name": name, "Faulty": {"fault": fault}},
        LOG_FREQUENCY=1000,
        OPTIMIZER__name="adamw",  # torch has no fused SGD for fake tensors
    ).config
    task = SelfSupervisionTask(config, tmp_path, torch.device("cpu"), hooks=[], services=Services())
    if fault:
        with pytest.raises(fake_cuda.Unwanted):
            fake_cuda.two_steps(task)
    else:
        fake_cuda.two_steps(task)
