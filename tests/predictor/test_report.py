from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sslengine.predictor import Neighbour, Prediction
from sslengine.predictor.report import as_json, as_text

PREDICTOR: Any = SimpleNamespace(
    run_folder=Path("runs/mine"),
    checkpoint=Path("runs/mine/checkpoints/model_phase3.torch"),
    network="teacher",
    class_names=[],
    view=SimpleNamespace(description="from config.DATA.TEST"),
)
NEAR = [Neighbour(7, "x/7.png", 0.75, 2), Neighbour(9, "x/9.png", 0.5, None)]
FOUND = {"a.png": Prediction(torch.tensor([3.0, 4.0]), torch.tensor([0.25, 0.5, 0.25]), NEAR)}


def test_json_has_everything() -> None:
    told = json.loads(json.dumps(as_json(PREDICTOR, FOUND)))
    (image,) = told.pop("images")
    assert told == {
        "run": "runs/mine", "checkpoint": "model_phase3.torch",
        "network": "teacher", "class_names": [],
        "transforms": "from config.DATA.TEST",
    }  # fmt: skip
    assert (image["image"], image["features"], image["classes"]) == (
        "a.png", [3.0, 4.0], [0.25, 0.5, 0.25],
    )  # fmt: skip
    assert image["nearest"][0] == {"index": 7, "path": "x/7.png", "similarity": 0.75, "label": 2}


def test_text_for_a_person() -> None:
    lines = as_text(PREDICTOR, FOUND).splitlines()
    assert lines[:3] == [
        "checkpoint  runs/mine/checkpoints/model_phase3.torch",
        "network     teacher",
        "transforms  from config.DATA.TEST",
    ]
    assert lines[4:] == [
        "a.png",
        "  features  2 numbers of norm 5",
        "  classes   1: 50.0 %  0: 25.0 %  2: 25.0 %",
        "  nearest   0.750  x/7.png (number 7, class 2)",
        "            0.500  x/9.png (number 9)",
    ]
