from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.hooks.default import default_hooks
from sslengine.trainer import loop
from tests.config.recipes import resolved
from tests.task.runs import make_task
from tests.task.test_task import SUPERVISED, WITH_TEST

# As VISSL's robustness_out_of_distribution/datasets/imagenet_r: labels of some of the classes.
SOME: dict[str, Any] = {
    **SUPERVISED, **WITH_TEST, "TEST_ONLY": True, "METERS__model_output_mask": True,
    "METERS__accuracy_list_meter": {"topk_values": [1, 2]},
    "DATA__TEST__RANDOM_SYNTHETIC_LABELS": 2,
}  # fmt: skip


@pytest.mark.parametrize("first", [[], [{"name": "OneHotEncode", "num_classes": 3}]])
def test_a_class_without_a_label_is_never_predicted(tmp_path: Path, first: list[Any]) -> None:
    changes = SOME | {"DATA__TEST__TRANSFORMS": [*first, {"name": "ToTensor"}]}
    task = make_task(tmp_path, default_hooks(resolved(**changes).config, tmp_path), **changes)
    with torch.no_grad():
        *_, bias = task.base_model.heads.parameters()
        bias.copy_(torch.tensor([0.0, 0.0, 100.0]))  # it would always be predicted
    loop.run(task)
    found = task.phase_results
    assert found["accuracy_list_meter"]["top_2"] == {"0": 100.0}
    assert 0 < found["accuracy_list_meter"]["top_1"]["0"] < 100
    assert found["loss"] < 10
