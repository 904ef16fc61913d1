from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sslengine.hooks.machine import LogComplexity, LogGpuMemory, LogGpus

CPU = torch.device("cpu")


def test_complexity_counts_what_one_image_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = SimpleNamespace(base_model=model.train(), device=CPU)
    LogComplexity([3, 1000, 1000]).on_start(task)
    # 8 filters of 3 x 3 x 3 at 10^6 places; batch norm in eval mode counts one per activation.
    (message,) = [text for text in caplog.messages if "GFLOP" in text]
    flops = float(message.split(" takes ")[1].split()[0])
    assert flops == pytest.approx(8 * 27 * 1e6 / 1e9, rel=0.1)
    assert "image of 3x1000x1000" in message
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_gpu_hooks_say_nothing_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = SimpleNamespace(device=CPU, train=True, iteration=1)
    LogGpus().on_start(task)
    LogGpuMemory(0).on_step(task)
    assert caplog.messages == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_hooks_name_the_gpu_and_its_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = SimpleNamespace(device=torch.device("cuda", 0), train=True, iteration=1)
    LogGpus().on_start(task)
    LogGpuMemory(0).on_step(task)
    assert "GiB free" in caplog.text
    assert "memory summary" in caplog.text
