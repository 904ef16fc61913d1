"""What a judge run prints last: one table of 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from sslengine.engines.score_table import show_all
from sslengine.engines.scoring import Score

NOTE = "linear: all 2000 answers are the same"


def _shown(trained: float, untrained: float = 30.6, metric: str = "accuracy") -> list[str]:
    values = {"trained": trained, "untrained": untrained, "raw pixels": 28.0}
    scores = [
        Score(
            name, "16x16" if name == "raw pixels" else "flatten", {20: value}, 50.0,
            protocols={"dense": {"metrics": {"linear mIoU": 9.0}, "notes": [NOTE] * (value < 30)}},
            intervals={"knn_20": [value - 1.5, value + 2.0], "linear": [48.0, 52.0]},
        )
        for name, value in values.items()
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    show_all(console, scores, metric, 10.0, ["linear probe: penalty 10 is an end of those tried"])
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _text(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_the_table_is_last_and_fits_80_columns() -> None:
    lines = _shown(82.1)
    assert max(map(len, lines)) <= 80
    (head,) = [number for number, line in enumerate(lines) if line.startswith("features")]
    assert [line.split() for line in lines[head:]] == [
        ["features", "layer", "kNN", "(k=20)", "linear"],
        ["trained", "flatten", "82.1", "±2.0", "%", "50.0", "±2.0", "%"],
        ["untrained", "flatten", "30.6", "±2.0", "%", "50.0", "±2.0", "%"],
        ["raw", "pixels", "16x16", "28.0", "±2.0", "%", "50.0", "±2.0", "%"],
        ["chance", "largest", "class", "10.0", "%", "10.0", "%"],
    ]
    before = _text(lines[:head])
    assert f"note dense: raw pixels, 16x16: {NOTE}" in before
    assert "note linear probe: penalty 10" in before


def test_images_of_several_classes_have_their_metric() -> None:
    text = _text(_shown(82.1, metric="mAP"))
    assert "random order" in text
    assert "kNN mAP" in text
