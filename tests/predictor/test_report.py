"""What a prediction shows: as text, as JSON, as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from sslengine.predictor import Neighbour, Prediction
from sslengine.predictor.report import GAP, LINE, SIDE, as_json, as_text, draw

PREDICTOR: Any = SimpleNamespace(
    run_folder=Path("runs/mine"), checkpoint=Path("runs/mine/checkpoints/model_phase3.torch"),
    network="teacher", class_names=[], view=SimpleNamespace(description="from config.DATA.TEST"),
)  # fmt: skip
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
        "a.png", "  features  2 numbers of norm 5", "  classes   1: 50.0 %  0: 25.0 %  2: 25.0 %",
        "  nearest   0.750  x/7.png (number 7, class 2)", "            0.500  x/9.png (number 9)",
    ]  # fmt: skip


# ---- picture


COLOURS = ["red", "lime", "blue"]


def _training_image(index: int) -> Image.Image:
    if index == 2:
        raise OSError("broken")
    return Image.new("RGB", (30, 30), COLOURS[index])


def _found(folder: Path) -> dict[str, Prediction]:
    found = {}
    for name, order in (("a", [1, 0]), ("b", [2])):
        path = folder / f"{name}.png"
        Image.new("RGB", (10, 10), "yellow").save(path)
        near = [Neighbour(i, f"{i}.png", 0.5, label=i) for i in order]
        found[str(path)] = Prediction(torch.zeros(2), None, near)
    return found


OF_PICTURE: Any = SimpleNamespace(training_image=_training_image, read=Image.open, class_names=[])


def test_queries_and_their_neighbours_are_in_their_places(tmp_path: Path) -> None:
    sheet = draw(OF_PICTURE, _found(tmp_path))
    across, down = SIDE + GAP, SIDE + 2 * LINE + GAP
    assert sheet.size == (GAP + 3 * across, GAP + 2 * down)

    def middle(column: int, row: int) -> Any:
        return sheet.getpixel((GAP + column * across + SIDE // 2, GAP + row * down + SIDE // 2))

    yellow, lime, red = (255, 255, 0), (0, 255, 0), (255, 0, 0)
    assert [middle(column, 0) for column in range(3)] == [yellow, lime, red]
    grey, white = (128, 128, 128), (255, 255, 255)  # one that cannot be read, and none
    assert [middle(column, 1) for column in range(3)] == [yellow, grey, white]
    below = sheet.crop((GAP + across, GAP + SIDE, GAP + across + SIDE, GAP + SIDE + LINE))
    assert below.convert("L").getextrema()[0] < 64  # the text
