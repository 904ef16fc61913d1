from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sslengine.engine import build
from sslengine.testing.run_suite import BF16
from sslengine.testing.runs import Spec, run
from tests.config.recipes import resolved
from tests.data.pictures import write_tree

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "broadcasts", "by_hand"),
    [(True, True, True), (False, False, False), ("before_eval", True, False)],
)
def test_what_ranks_exchange(
    given: object, broadcasts: bool, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = {"BROADCAST_BUFFERS": given, "MANUAL_GRADIENT_REDUCTION": True}
    config = resolved(DISTRIBUTED=distributed).config
    assert not build.build_reduction(config, None).by_hand  # nobody to reduce with
    monkeypatch.setattr(build, "world_size", lambda: 2)
    found = build.build_reduction(config, None)
    assert found.by_hand
    assert (found.broadcasts_buffers, found.broadcasts_by_hand) == (broadcasts, by_hand)


@pytest.mark.parametrize(
    ("device", "sharded", "last"),
    [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)],
)
def test_channels_come_last_by_themselves_on_a_gpu(
    device: str, sharded: bool, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "to", _stays_on_the_cpu(nn.Module.to))
    monkeypatch.setattr(build, "shards", lambda config: sharded)
    config = resolved(MODEL__CHANNELS_LAST="auto").config
    model = build.build_base_model(config, torch.device(device))
    filters = [each for each in model.parameters() if each.ndim == 4 and each[0, 0].numel() > 1]
    assert filters
    assert {each.is_contiguous(memory_format=torch.channels_last) for each in filters} == {last}


def _stays_on_the_cpu(to: Any) -> Any:
    return lambda module, *where, **form: to(module, **form) if form else module


def test_the_scalers_arguments_come_from_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, **more: given.append(more))
    amp = {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16",
           "GRAD_SCALER": {"init_scale": 8.0, "growth_interval": 3}}  # fmt: skip
    build.build_run_precision(resolved(MODEL__AMP_PARAMS=amp).config, CPU)
    assert given == [
        {"enabled": False, "init_scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5,
         "growth_interval": 3}
    ]  # fmt: skip


def test_classes_of_train_without_its_feed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a run that only tests asks for; where they cannot be read, it goes without."""
    write_tree(tmp_path / "train", "dog/0.png", "cat/0.png")

    def classes(folder: str, kind: str = "standard") -> list[tuple[str, ...]]:
        changes = {"DATA_SOURCES": ["disk_folder"], "LABEL_SOURCES": ["disk_folder"],
                   "DATA_PATHS": [str(tmp_path / folder)], "LABEL_TYPE": kind}  # fmt: skip
        run = resolved(**{f"DATA__TRAIN__{key}": value for key, value in changes.items()})
        return [each.names for each in build.classes_of_train(run.config)]

    assert classes("train") == [("cat", "dog")]
    assert classes("train", "sample_index") == []
    assert not caplog.text
    assert classes("gone") == []
    assert "TRAIN's classes are not known, TEST's are numbered by themselves" in caplog.text


def test_one_word_for_the_precision_trains_as_the_keys_of_amp_do(tmp_path: Path) -> None:
    """Through real runs: the same losses to the bit, and others than in float32."""
    ways = {"word": {"MACHINE.PRECISION": "bf16"}, "keys": BF16, "fp32": {}}
    losses = {
        name: run(Spec((), (values,)), tmp_path / name).losses for name, values in ways.items()
    }
    assert losses["word"] == losses["keys"] != losses["fp32"]
