from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import Manifest, path_for
from sslengine.checkpoint.options import BestOptions, CheckpointOptions
from sslengine.checkpoint.retention import (
    best_of,
    keep_best,
    remove_surplus,
    saved,
    surplus,
)


def _manifest(number: int, score: float | None = None) -> Manifest:
    results = {} if score is None else {"test": {"accuracy": {"top_1": score}}}
    return Manifest(f"model_phase{number}.torch", 1, "", number=number, results=results)


def _numbers(manifests: list[Manifest]) -> list[int]:
    return [each.number for each in manifests]


BEST = BestOptions(METRIC="test.accuracy.top_1")


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        ({}, []),
        ({"KEEP_LAST": 1}, [5, 4, 3, 2, 1]),
        ({"KEEP_LAST": 2, "KEEP_EVERY": 2}, [3, 1]),
        ({"KEEP_LAST": 2, "BEST": BEST}, [4, 2, 1]),
        ({"KEEP_LAST": 9}, []),
        ({"KEEP_EVERY": 2}, []),
    ],
)
def test_what_no_rule_keeps(options: dict[str, Any], gone: list[int]) -> None:
    scores = {1: 10.0, 2: 30.0, 3: 50.0, 4: 40.0}
    manifests = [_manifest(number, scores.get(number)) for number in (6, 5, 4, 3, 2, 1)]
    assert _numbers(surplus(manifests, CheckpointOptions(**options))) == gone


def test_the_best_by_largest_or_smallest() -> None:
    manifests = [_manifest(3, 5.0), _manifest(2, 7.0), _manifest(1, 5.0)]
    assert best_of(manifests, BEST).number == 2
    smallest = BestOptions(METRIC=BEST.METRIC, MODE="min")
    assert best_of(manifests, smallest).number == 3  # as good as 1, and newer
    assert best_of(manifests, BestOptions()) is None
    assert best_of([_manifest(1)], BEST) is None


def test_a_figure_that_is_not_a_number_is_never_the_best() -> None:
    manifests = [_manifest(2, float("nan")), _manifest(1, 3.0)]
    assert best_of(manifests, BEST).number == 1
    assert best_of(manifests[::-1], BEST).number == 1


def test_files_and_manifests_go_together_and_the_pointers_stay(tmp_path: Path) -> None:
    for number, score in ((1, 90.0), (2, 10.0), (3, 20.0), (4, 30.0)):
        facts = {"number": number, "results": {"test": {"accuracy": {"top_1": score}}}}
        files.write({"n": number}, tmp_path, f"model_phase{number}.torch", facts)
    (tmp_path / "notes.txt").write_text("the user's")
    keep_best(tmp_path, BEST)
    remove_surplus(tmp_path, CheckpointOptions(KEEP_LAST=1, BEST=BEST))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.torch", "checkpoint.torch", "model_phase1.json", "model_phase1.torch",
        "model_phase4.json", "model_phase4.torch", "notes.txt",
    ]  # fmt: skip
    assert os.readlink(tmp_path / files.BEST) == "model_phase1.torch"


def test_a_checkpoint_without_a_manifest_is_not_ours_to_delete(tmp_path: Path) -> None:
    for number in (1, 2):
        files.write({}, tmp_path, f"model_phase{number}.torch", {"number": number})
    path_for(tmp_path / "model_phase1.torch").unlink()
    assert _numbers(saved(tmp_path)) == [2]
    remove_surplus(tmp_path, CheckpointOptions(KEEP_LAST=1))
    assert (tmp_path / "model_phase1.torch").exists()


@pytest.mark.parametrize("target", ["../precious.txt", "../precious", "model_phase3.torch"])
def test_what_a_manifest_says_of_another_file_is_never_followed(
    tmp_path: Path, target: str
) -> None:
    folder = tmp_path / "checkpoints"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "a").write_text("mine")
    (tmp_path / "precious.txt").write_text("mine")
    for number in (1, 2, 3):
        files.write({"n": number}, folder, f"model_phase{number}.torch", {"number": number})
    path = folder / "model_phase1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"file": target}))
    remove_surplus(folder, CheckpointOptions(KEEP_LAST=1))
    assert (tmp_path / "precious" / "a").exists()
    assert (tmp_path / "precious.txt").exists()
    assert sorted(each.name for each in folder.glob("model_*.torch")) == [
        "model_phase1.torch", "model_phase3.torch",
    ]  # fmt: skip


def test_a_folder_that_the_engine_did_not_make_stays(tmp_path: Path) -> None:
    files.write({}, tmp_path, "model_phase1.torch", {"number": 1})
    (tmp_path / "model_phase1.torch").unlink()
    (tmp_path / "model_phase1.torch").mkdir()
    (tmp_path / "model_phase1.torch" / "a").write_text("mine")
    files.write({}, tmp_path, "model_phase2.torch", {"number": 2})
    remove_surplus(tmp_path, CheckpointOptions(KEEP_LAST=1))
    assert (tmp_path / "model_phase1.torch" / "a").exists()
