"""Every method on a GPU makes the steps that it makes on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sslengine.testing.runs import RunOutcome
from tests.gpu.place import (
    QUICK,
    draws_of_the_cpu,
    full_float32,
    needs_a_gpu,
    quickstart,
    trained,
)

pytestmark = [*needs_a_gpu, pytest.mark.usefixtures(draws_of_the_cpu.__name__)]
__all__ = ["draws_of_the_cpu", "full_float32"]

# Steps in which a difference of gradients stays as small as it is.
PLAIN = {
    "OPTIMIZER.name": "sgd",
    "OPTIMIZER.momentum": 0.0,
    "OPTIMIZER.param_schedulers.lr": {"name": "constant", "value": 0.01},
}


# DeepCluster fills its memory from the loader, whose images are float32.
@pytest.mark.parametrize("name", [name for name in QUICK if name != "deepclusterv2"])
def test_in_float64(name: str, tmp_path: Path) -> None:
    gpu = trained(quickstart(name).having(PLAIN, double=True), tmp_path / "gpu")
    cpu = trained(quickstart(name, "cpu").having(PLAIN, double=True), tmp_path / "cpu")
    _expect_close(gpu, cpu, 1e-8)


@pytest.mark.parametrize("name", QUICK)
def test_in_float32(name: str, tmp_path: Path, full_float32: None) -> None:
    """The first loss: what follows depends on how sums were rounded."""
    gpu = trained(quickstart(name).having(PLAIN), tmp_path / "gpu")
    cpu = trained(quickstart(name, "cpu").having(PLAIN), tmp_path / "cpu")
    assert gpu.losses[0] == pytest.approx(cpu.losses[0], rel=1e-4)
    assert torch.tensor(gpu.losses).isfinite().all()


def _expect_close(one: RunOutcome, other: RunOutcome, tolerance: float) -> None:
    assert one.losses == pytest.approx(other.losses, rel=tolerance)
    assert one.end.keys() == other.end.keys()
    for name, end in other.end.items():
        torch.testing.assert_close(one.end[name], end, rtol=tolerance, atol=tolerance, msg=name)
