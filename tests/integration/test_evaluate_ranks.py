"""Judging at two ranks: nobody waits for what rank 0 does alone, however long it takes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.integration.command import COMMAND, write_config

# Rank 0's metrics end when rank 1 has left the run: they take longer than any time limit.
SLOW = """
import os, time
from pathlib import Path
from sslengine.distributed import process_group
from sslengine.engines import scoring

LEFT = Path("left")
leave = process_group.leave

def leave_and_tell():
    leave()
    if os.environ.get("RANK") == "1":
        LEFT.touch()

process_group.leave = leave_and_tell
measure = scoring.label_free

def slow(*features):
    until = time.monotonic() + 60
    while not LEFT.exists():
        if time.monotonic() > until:
            raise RuntimeError("rank 1 waits for the metrics")
        time.sleep(0.05)
    return measure(*features)

scoring.label_free = slow
"""


@pytest.mark.slow
def test_metrics_may_take_longer_than_ranks_wait_for_each_other(tmp_path: Path) -> None:
    ranks = {"DISTRIBUTED": {"BACKEND": "gloo", "NUM_PROC_PER_NODE": 2, "TIMEOUT_MINUTES": 0.5}}
    few = {"DATA__TRAIN__DATA_LIMIT": 24, "OPTIMIZER__num_epochs": 1}
    write_config(tmp_path, **{**SHAPES, **few})
    _run(tmp_path, "config.CHECKPOINT.DIR=run")
    (tmp_path / "configs" / "tiny.yaml").unlink()
    (tmp_path / "configs").rmdir()
    write_config(tmp_path, **{**FROZEN, **few, **ranks, "PLUGINS": ["slow"]})
    (tmp_path / "slow.py").write_text(SLOW)
    _run(tmp_path, "config.CHECKPOINT.DIR=run", "engine_name=evaluate")
    report = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert len(report["scores"]) == 3
    assert all(score["linear"] is not None for score in report["scores"])
    assert all(score["label_free"]["rankme"]["value"] for score in report["scores"])


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_protocols_on_further_images_are_the_same_at_two_ranks(tmp_path: Path) -> None:
    few = {"DATA__TRAIN__DATA_LIMIT": 60, "OPTIMIZER__num_epochs": 1}
    write_config(tmp_path, **{**SHAPES, **few})
    _run(tmp_path, "config.CHECKPOINT.DIR=run")
    (tmp_path / "configs" / "tiny.yaml").unlink()
    (tmp_path / "configs").rmdir()
    asked = {
        "PROTOCOLS": ["few_labels", "out_of_set", "view_retrieval", "dense", "corruptions"],
        "LABEL_FREE": [], "DENSE": {"IMAGES": 6}, "OUTSIDE": {"SOURCE": "upright_shapes", "LIMIT": 10},
        "CORRUPTIONS": {"KINDS": ["shot_noise", "fog"], "SEVERITIES": [3]},
    }  # fmt: skip
    given = {**FROZEN, **few, "EVALUATE": asked, "LINEAR_PROBE": {"PENALTIES": [0.1]}}
    write_config(tmp_path, **given)
    found, lists = [], []
    for ranks in (1, 2):
        _run(
            tmp_path, "config.CHECKPOINT.DIR=run", "engine_name=evaluate",
            f"config.EVALUATE.FEATURES=features{ranks}", "config.DISTRIBUTED.BACKEND=gloo",
            f"config.DISTRIBUTED.NUM_PROC_PER_NODE={ranks}",
        )  # fmt: skip
        report = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        found.append([score["protocols"] for score in report["scores"]])
        lists.append({path.name: path.read_text() for path in tmp_path.rglob("*_seed*.csv")})
    assert lists[0] == lists[1]
    for one, two in zip(*found, strict=True):
        assert set(one) == set(two) == {*asked["PROTOCOLS"]}
        for name in asked["PROTOCOLS"]:
            assert one[name]["metrics"] == pytest.approx(two[name]["metrics"], abs=1e-9), name
