"""The files of docs/judging/ and docs/trunks.md, on a few images: pretrained, judged, fine-tuned, another trunk."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslengine.config import sections
from sslengine.launch.cli import main
from sslengine.registry import TRUNKS

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
