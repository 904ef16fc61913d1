"""A run makes no float64 on a device that has none: Apple's GPUs, played by fake tensors of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sslengine import precision
from sslengine.engine.state import Reading
from tests.integration.test_fake_cuda import TRIED, small, task_of, with_tests
from tests.tail import slow_but

fake_cuda = pytest.importorskip("tests.fake_cuda", reason="this torch has no FakeTensorMode")


class NoFloat64(TorchDispatchMode):
    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, Tensor) and fake_cuda.is_there(each):
                assert each.dtype != torch.float64, f"{func}: float64 on the device"
        return result


@pytest.fixture(autouse=True)
def _has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is made on the CPU before it moves."""
    monkeypatch.setattr(precision, "WITHOUT_FLOAT64", ("cpu", "cuda"))


@pytest.mark.parametrize(
    ("kind", "name"), slow_but([("method", "byol_loss"), ("method", "nce_loss_with_memory")], TRIED)
)
def test_steps(kind: str, name: str, tmp_path: Path) -> None:
    task = task_of(small(kind, name, {}), tmp_path)
    with fake_cuda.on_cuda(task), NoFloat64(), fake_cuda.Answers():
        for _ in range(2):
            task.step()
    assert task.iteration == 2


def test_a_test_phase_with_meters(tmp_path: Path) -> None:
    task = task_of(with_tests("cross_entropy_multiple_output_single_target"), tmp_path)
    task.prepare()
    read = list(task.parts.feeds.test.batches())
    with fake_cuda.on_cuda(task) as mode, NoFloat64(), fake_cuda.Answers():
        for _ in range(2):
            task.step()
        task.on_phase_end()
        task.parts.feeds.test.batches = lambda *_: iter(fake_cuda.moved(read, mode))
        task.start_phase()
        for _ in read:
            task.step()
        task.on_phase_end()
        beside = task.beside(Reading(task.parts.feeds.test, task.parts.feeds.options("TEST")))
        for _ in read:
            beside.step()
    assert "loss" in task.results["test"]
