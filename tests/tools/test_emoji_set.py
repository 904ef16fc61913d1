"""The set of emoji: which images are on which side."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tools import emoji_set


def package(folder: Path) -> Path:
    """Two emoji with one skin tone each, one without, and one without an image of this vendor."""
    images = folder / "img" / "google" / "64"
    images.mkdir(parents=True)
    emoji = [
        {"unified": code, "category": category, "image": f"{code}.png",
         "skin_variations": {"tone": {"image": f"{code}-tone.png"}} if tones else {}}
        for code, category, tones in (("A", "Food & Drink", True), ("B", "Flags", True),
                                      ("C", "Food & Drink", False), ("D", "Flags", False))
    ]  # fmt: skip
    (folder / "emoji.json").write_text(json.dumps(emoji))
    for name in ("A.png", "A-tone.png", "B.png", "B-tone.png", "C.png"):
        (images / name).write_bytes(name.encode())
    return folder


def test_tones_of_an_emoji_are_on_one_side(tmp_path: Path) -> None:
    """The CRC-32 of A, B, C and D are d3d99e8b, 4ad0cf31, 3dd7ffa7 and a3b36a04: C, B, D, A."""
    out = tmp_path / "out"
    assert emoji_set.main([str(package(tmp_path / "p")), str(out), "--validation", "2"]) == 0
    found = {str(path.relative_to(out)) for path in out.rglob("*.png")}
    assert found == {
        "val/food_drink/C.png", "val/flags/B.png", "val/flags/B-tone.png",
        "train/food_drink/A.png", "train/food_drink/A-tone.png",
    }  # fmt: skip
    with (out / "train.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["path", "label", "emoji"],
            ["train/food_drink/A.png", "food_drink", "A"],
            ["train/food_drink/A-tone.png", "food_drink", "A"],
        ]
    with pytest.raises(SystemExit):  # nothing is overwritten
        emoji_set.main([str(tmp_path / "p"), str(out)])
    with pytest.raises(SystemExit):
        emoji_set.main([str(tmp_path), str(tmp_path / "other")])
