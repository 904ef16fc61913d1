"""Precisions, compiled networks, memory formats, ranks and a resume on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed import data_parallel
from sslengine.engine import build
from sslengine.testing import runs
from sslengine.testing.run_suite import BF16, NEAR, SHARDED
from sslengine.testing.runs import CHECKPOINT, SAVED_AT
from sslengine.testing.state import differences
from tests.gpu.place import IS_CUDA, NAME, QUICK, full_float32, needs_a_gpu, quickstart, trained
from tests.ranks import free_port

pytestmark = needs_a_gpu
__all__ = ["full_float32"]

FP16 = {**BF16, "MODEL.AMP_PARAMS.AMP_DTYPE": "float16"}
COMPILED = {"MODEL.COMPILE.USE_COMPILE": True}
ROWS = {"MODEL.CHANNELS_LAST": False}
LAST = {"MODEL.CHANNELS_LAST": True}
WAYS = ["simclr", "moco", "dino", "mae", "swav"]


@pytest.mark.parametrize("values", [FP16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("name", QUICK)
def test_mixed_precision(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    if values is FP16 and not IS_CUDA:
        pytest.skip("float16 needs a GPU")
    half = trained(quickstart(name).having(values), tmp_path / "half")
    full = trained(quickstart(name).having({"OPTIMIZER.num_iterations": 1}), tmp_path / "full")
    assert all(map(math.isfinite, half.losses))
    assert math.isclose(half.losses[0], full.losses[0], rel_tol=NEAR, abs_tol=NEAR)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # by full_float32
@pytest.mark.parametrize("name", WAYS)
def test_compiled(name: str, tmp_path: Path, full_float32: None) -> None:
    compiled = trained(quickstart(name).having(COMPILED), tmp_path / "compiled")
    plain = trained(quickstart(name), tmp_path / "plain")
    assert compiled.losses[0] == pytest.approx(plain.losses[0], rel=1e-3)


@pytest.mark.parametrize("name", ["simclr", "swav"])
def test_channels_last(name: str, tmp_path: Path, full_float32: None) -> None:
    rows, last = (
        trained(quickstart(name).having(way), tmp_path / str(number))
        for number, way in enumerate((ROWS, LAST))
    )
    assert rows.losses[0] == pytest.approx(last.losses[0], rel=1e-3)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", QUICK)
def test_a_resumed_run_is_equal_to_the_bit(name: str, tmp_path: Path, deterministic: None) -> None:
    """Needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment, which `make gpu` sets."""
    saved = {"CHECKPOINT.CHECKPOINT_ITER_FREQUENCY": SAVED_AT}
    whole = trained(quickstart(name).having(saved), tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoints" / CHECKPOINT
    resumed = trained(quickstart(name), tmp_path / "resumed", resume_from=checkpoint)
    assert resumed.losses == whole.losses[SAVED_AT:]
    assert not differences(whole.state, resumed.state)


@pytest.fixture
def a_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone, NCCL on a GPU, which the engine takes for one of two:
    alone it would not wrap its model."""
    torch.distributed.init_process_group(
        "nccl" if IS_CUDA else "gloo",
        init_method=f"tcp://127.0.0.1:{free_port()}",
        rank=0,
        world_size=1,
        device_id=torch.device(NAME) if IS_CUDA else None,
    )
    for module in (build, data_parallel):
        monkeypatch.setattr(module, "world_size", lambda: 2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("way", "kind"),
    [({}, DistributedDataParallel), (SHARDED, FSDPModule)],
    ids=["DDP", "FSDP2"],
)
@pytest.mark.parametrize("name", ["simclr", "byol", "dino", "swav"])
def test_wrapped(name: str, way: dict[str, Any], kind: type, tmp_path: Path, a_group: None) -> None:
    spec = quickstart(name).having(way)
    task = runs.build(spec.resolve(), tmp_path / "task", device=torch.device(NAME))
    assert any(isinstance(module, kind) for module in task.model.modules())
    grouped = trained(spec, tmp_path / "grouped")
    assert all(map(math.isfinite, grouped.losses))
