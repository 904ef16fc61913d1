"""Judging: which feature, the pages' commands, and metrics that take long at several ranks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sslengine import catalog  # noqa: F401
from sslengine.config import sections
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.launch.cli import main
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.registry import TRUNKS
from tests.config.test_shipped import CONFIGS, RUNS
from tests.engines.test_evaluate import FROZEN, SHAPES
from tests.integration.command import COMMAND, write_config

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = "".join(
    (DOCS / name).read_text() for name in ("judging/yaml.md", "judging/finetune.md", "trunks.md")
)
FILES = ["evaluate/mine.yaml", "supervised.yaml"]
SHORT = ["config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=1"]
SIMCLR = ["config=quickstart/simclr", "config.CHECKPOINT.DIR=runs/mine", *SHORT]


def _write_colours(root: Path, count: int) -> None:
    """Three classes that differ in their colour's direction from grey, and in how far it is from it.

    By cosine each image's neighbours are of its class. By dot product all are of the farthest.
    """
    draw = np.random.default_rng(count)
    for place, (name, length) in enumerate(zip("abc", (30, 60, 120), strict=True)):
        direction = np.full(3, 0.4)
        direction[place] = 1.0
        colour = 127.5 + length * direction / np.linalg.norm(direction)
        for number in range(count):
            pixels = colour + draw.uniform(-2, 2, (60, 60, 3))
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.png")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader is who has written the files down."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGES, re.DOTALL)
    for name, text in zip(FILES, blocks, strict=True):
        file = tmp_path / "configs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("/data/", f"{tmp_path}/data/"))
    (code,) = re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL)
    (tmp_path / "my_trunks.py").write_text(code)
    for split in ("train", "val"):
        _write_colours(tmp_path / "data" / split, 7)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    # The page's trunk is for this test alone.
    sys.modules.pop("my_trunks", None)
    for names in (TRUNKS._things, TRUNKS._options, TRUNKS._owners):
        names.pop("plain", None)
    sections._SECTIONS.pop("MODEL.TRUNK.PLAIN", None)


@pytest.mark.slow
def test_from_pretraining_to_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = "config.DATA.TRAIN"
    images = [f"{train}.DATA_SOURCES=[disk_folder]", f"{train}.DATA_PATHS=[data/train]"]
    few = [f"{train}.DATA_LIMIT=-1", f"{train}.BATCHSIZE_PER_REPLICA=8"]
    assert main([*SIMCLR, *images, *few]) == 0

    assert main([*SIMCLR, "+config/evaluate=mine"]) == 0
    report = json.loads((folder / "runs/mine/evaluation.json").read_text())
    scores = {each["features"]: each for each in report["scores"]}
    assert set(scores) == {"trained", "untrained", "raw pixels"}
    # One class of three would be found by dot product.
    assert scores["raw pixels"]["knn"] == {"1": 100.0, "20": 100.0}
    assert scores["raw pixels"]["linear"] == 100.0

    features = ["engine_name=extract_features", "config.TEST_MODEL=true"]
    assert main([*SIMCLR, "+config/evaluate=mine", *features]) == 0
    for split in ("train", "test"):
        assert (folder / f"runs/mine/features/rank0_chunk0_{split}_flatten_features.npy").exists()

    assert main(["config=supervised", *SHORT]) == 0
    assert (folder / "runs/supervised/checkpoints/best.torch").exists()
    log = (folder / "runs/supervised/log.txt").read_text()
    assert "trunk and 0 head tensors from runs/mine/checkpoints/checkpoint.torch" in log

    capsys.readouterr()
    commands = re.findall(
        r"    sslengine (config=supervised (?:[^\n]*\\\n)+[^\n]*)$", PAGES, re.MULTILINE
    )
    for name, command in zip(("timm", "plain"), commands, strict=True):
        arguments = command.replace("\\\n", " ").split()
        assert main([*arguments, *SHORT, f"config.CHECKPOINT.DIR=runs/{name}"]) == 0
        assert f"{name}, CrossEntropyLoss" in capsys.readouterr().out


# ---- What is judged, exported and predicted is the feature that the recipe trains.


def _reads_class_tokens(name: str) -> bool:
    """The method takes lastCLS by name, or as DINO's head does the ViT's final feature."""
    text = (CONFIGS / f"{name}.yaml").read_text()
    by_name = re.search(r"\b(ibot|dinov2|dinov3|msn)_loss\b", text)
    return bool(by_name) or ("dino_loss" in text and "_vit" in name)


RECIPES = [name for name in RUNS if _reads_class_tokens(name)]


def test_recipes() -> None:
    methods = {name.rpartition("/")[2].partition("_")[0] for name in RECIPES}
    assert methods == {"dino", "ibot", "dinov2", "dinov3", "msn"}
    assert len(RECIPES) > 12


def _one_block(name: str) -> Any:
    """Its trunk with one block, and random numbers in all parameters."""
    config = resolve([f"config={name}"]).config
    options = read(config, ModelOptions)
    options.TRUNK.TIMM.arguments["depth"] = options.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS = 1
    options.INPUT_CHANNELS = 3
    torch.manual_seed(0)
    trunk = build_trunk(options).eval()
    for parameter in trunk.parameters():
        nn.init.normal_(parameter, std=0.1)
    return trunk


@torch.no_grad()
@pytest.mark.parametrize("name", RECIPES)
def test_class_tokens_are_judged(name: str) -> None:
    """A trunk's output without a name is what `judge`, `export`, `embed` and `predict` read."""
    trunk = _one_block(name)
    images = torch.randn(2, 3, *trunk.patch_embed.img_size)
    final, by_name, mean = trunk(images)[0], *trunk(images, ["lastCLS", "lastPOOL"])
    torch.testing.assert_close(final, by_name)
    assert not torch.allclose(final, mean, atol=1e-2)


# ---- Judging at two ranks: nobody waits for what rank 0 does alone, however long it takes.


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
