"""The files of docs/benchmarks.md, on a few images: pretrained, judged, fine-tuned, another trunk."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sslengine.config import sections
from sslengine.launch.cli import main
from sslengine.registry import TRUNKS
from tests.data.pictures import write_tree

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
FILES = ["judge/mine.yaml", "supervised.yaml"]
SHORT = ["config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=1"]
SIMCLR = ["config=quickstart/simclr", "config.CHECKPOINT.DIR=runs/mine", *SHORT]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a reader is who has written the files down."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for name, text in zip(FILES, blocks, strict=True):
        file = tmp_path / "configs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("/data/", f"{tmp_path}/data/"))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_trunks.py").write_text(code)
    for split in ("train", "val"):
        write_tree(
            tmp_path / "data" / split,
            *(f"{name}/{number}.png" for name in "abc" for number in range(7)),
        )
    monkeypatch.chdir(tmp_path)
    # The page's trunk is for this test alone.
    for owner, name in ((TRUNKS, "_things"), (TRUNKS, "_options"), (sections, "_SECTIONS")):
        monkeypatch.setattr(owner, name, dict(getattr(owner, name)))
    yield tmp_path
    sys.modules.pop("my_trunks", None)


def test_from_pretraining_to_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = "config.DATA.TRAIN"
    images = [f"{train}.DATA_SOURCES=[disk_folder]", f"{train}.DATA_PATHS=[data/train]"]
    few = [f"{train}.DATA_LIMIT=-1", f"{train}.BATCHSIZE_PER_REPLICA=8"]
    assert main([*SIMCLR, *images, *few]) == 0

    assert main([*SIMCLR, "+config/judge=mine"]) == 0
    scores = json.loads((folder / "runs/mine/evaluation.json").read_text())["scores"]
    assert {each["features"] for each in scores} == {"trained", "untrained", "raw pixels"}

    features = ["engine_name=extract_features", "config.TEST_MODEL=true"]
    assert main([*SIMCLR, "+config/judge=mine", *features]) == 0
    for split in ("train", "test"):
        assert (folder / f"runs/mine/features/rank0_chunk0_{split}_flatten_features.npy").exists()

    assert main(["config=supervised", *SHORT]) == 0
    assert (folder / "runs/supervised/checkpoints/best.torch").exists()
    log = (folder / "runs/supervised/log.txt").read_text()
    assert "trunk and 0 head tensors from runs/mine/checkpoints/checkpoint.torch" in log

    capsys.readouterr()
    (command,) = re.findall(r"    sslengine (config=supervised .*PLUGINS[^`]*)$", PAGE)
    arguments = command.replace("\\\n", " ").split()
    assert main([*arguments, *SHORT, "config.CHECKPOINT.DIR=runs/timm"]) == 0
    assert "timm, CrossEntropyLoss" in capsys.readouterr().out
