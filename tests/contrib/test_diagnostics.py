"""Hooks that look into a run, through real runs."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from sslengine.contrib.diagnostics import (
    LogComplexity,
    ReportUnreachedParameters,
    TensorBoardHistograms,
    WriteMemorySnapshot,
)
from sslengine.engine import loop
from sslengine.hooks.default import make_extra
from sslengine.monitor.writers import RunPlace, TensorBoardWriter
from tests.engine.runs import CPU, make_task, train
from tests.engine.tasks import ListModel, begin, make_batch
from tests.ranks import RankPool


def test_a_snapshot_of_memory_is_of_a_gpu_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, [make_extra({"name": "layer_memory", "iteration": 1})])
    assert "TRACK_BY_LAYER_MEMORY has no effect" in caplog.text
    assert not (tmp_path / "profile").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_snapshot_has_the_allocations_of_its_step(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    task = SimpleNamespace(device=device, train=True, iteration=1, run_dir=tmp_path)
    hook = WriteMemorySnapshot(iteration=1)
    for call in (hook.on_start, hook.on_step_start):
        call(task)  # type: ignore[arg-type]
    block = torch.empty(2**26, dtype=torch.uint8, device=device)
    hook.on_step(task)  # type: ignore[arg-type]
    found = pickle.loads((tmp_path / "profile" / "rank0_memory.pickle").read_bytes())
    sizes = [each["size"] for trace in found["device_traces"] for each in trace]
    assert block.numel() in sizes


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


class Astray(nn.Module):
    """One layer that is never called, one whose output goes nowhere, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3 * 64, 2)
        self.idle, self.nowhere, self.frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        scores = self.used(batch["data"].flatten(1))
        self.nowhere(scores)
        return {"loss": scores.square().mean()}


CHANGES: dict[str, Any] = {
    "TRAINER__TRAIN_STEP_NAME": "loss_dict_train_step", "LOSS__name": "",
    "MODEL__BASE_MODEL_NAME": "tests.contrib.test_diagnostics:Astray",
    "DISTRIBUTED__DETECT_ANOMALOUS_PARAMS": True,
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": 8}, {"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
}  # fmt: skip


def test_parameters_without_gradient_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = make_task(tmp_path, None, **CHANGES)
    with caplog.at_level(logging.WARNING, "sslengine"):
        loop.run(task)
    (message,) = [each.getMessage() for each in caplog.records if "no gradient" in each.message]
    assert ": idle.bias, idle.weight, nowhere.bias, nowhere.weight." in message


def _messages(folder: Path, **changes: Any) -> list[str]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("sslengine")
    log.addHandler(handler)
    torch.manual_seed(0)
    try:
        loop.run(make_task(folder, [ReportUnreachedParameters()], **CHANGES, **changes))
    finally:
        log.removeHandler(handler)
    return [message for message in told if "no gradient" in message]


def test_every_rank_tells(tmp_path: Path, two_ranks: RankPool) -> None:
    """Where gradients are filled up with zeros by hand."""
    changes = {"DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True, "DISTRIBUTED__NUM_PROC_PER_NODE": 2}
    for (message,) in two_ranks.run(_messages, tmp_path, **changes):
        assert "idle.bias, idle.weight, nowhere.bias, nowhere.weight" in message


def test_histograms_every_so_many_steps(tmp_path: Path) -> None:
    hooks = (
        TensorBoardHistograms(every=2, parameters=True, gradients=True),
        TensorBoardHistograms(every=1, parameters=False, gradients=False),
    )
    task = begin([make_batch()] * 3, ListModel(), nn.CrossEntropyLoss(), *hooks)
    task.writers.append(TensorBoardWriter(RunPlace(tmp_path, 0)))
    for _ in range(3):
        task.step()
    task.on_end()
    events = EventAccumulator(str(tmp_path / "tb_logs"), size_guidance={"histograms": 0})
    events.Reload()
    assert sorted(events.Tags()["histograms"]) == [
        "gradients/linear.bias",
        "gradients/linear.weight",
        "parameters/linear.bias",
        "parameters/linear.weight",
    ]
    assert [event.step for event in events.Histograms("parameters/linear.weight")] == [0, 2]
