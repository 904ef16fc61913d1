"""docs/adding_a_method.md followed to the letter, in a folder outside the repository."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import warm
from tests.engine.runs import make_task, train

DOC = Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md"
SMALL = [
    "config.DATA.TRAIN.DATA_LIMIT=256",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=32",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.OPTIMIZER.num_epochs=3",
    "config.CHECKPOINT.CHECKPOINT_FREQUENCY=1",
]
# As the page has it; `sslengine` is `python -m sslengine`.
COMMAND = [sys.executable, "-m", "sslengine", "config=whiten", *SMALL]
JUDGE = [
    "+config/benchmark/frozen=shapes",
    "config.DATA.TEST.DATA_LIMIT=100",
    "config.EVALUATE.PROTOCOLS=[]",
]


def _block(text: str, before: str, language: str) -> str:
    """The first block of code behind the words `before`."""
    match = re.search(rf"{re.escape(before)}.*?```{language}\n(.*?)```", text, re.DOTALL)
    assert match is not None
    return match.group(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = DOC.read_text()
    (tmp_path / "configs").mkdir()
    (tmp_path / "whiten.py").write_text(_block(text, "`whiten.py`", "python"))
    (tmp_path / "configs" / "whiten.yaml").write_text(_block(text, "`configs/whiten.yaml`", "yaml"))
    return tmp_path


def _run(folder: Path, *more: str) -> str:
    done = warm.run([*COMMAND, *more], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_one_file_one_yaml_a_run_a_resume_a_knn_figure(folder: Path) -> None:
    first = subprocess.Popen(
        COMMAND, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    newest = folder / "runs" / "whiten" / "checkpoints" / "checkpoint.torch"
    for _ in range(1200):
        if newest.exists() or first.poll() is not None:
            break
        time.sleep(0.1)
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=60)
    assert newest.exists(), told
    assert first.returncode != 0, "it was done before it could be stopped"

    told = _run(folder)
    assert "resum" in told
    text = (folder / "runs/whiten/metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert steps[-1]["iteration"] == 24
    assert {"loss.agreement", "loss.whiteness", "largest_feature"} <= steps[-1].keys()
    assert {"projection_rank", "projection_std"} <= lines[-1].keys()

    assert "kNN" in _run(folder, *JUDGE)
    scores = json.loads((folder / "runs/whiten/evaluation.json").read_text())["scores"]
    assert {each["features"] for each in scores} >= {"trained", "untrained"}


def test_a_typo_in_its_options_is_an_error(folder: Path) -> None:
    done = warm.run([*COMMAND, "config.LOSS.whiten_loss.wieght=2"], cwd=folder)
    assert done.returncode == 2
    told = "config.LOSS.whiten_loss.wieght: unknown key. Did you mean 'weight'?"
    assert told in done.stderr


def test_more_than_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second file: predictor, teacher and queue all move."""
    (tmp_path / "taught.py").write_text(_block(DOC.read_text(), "`taught.py`", "python"))
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"LOSS": {"name": "taught:Taught", "Taught": {"dim": 8}}}
    before = make_task(tmp_path, [], **changes).loss.state_dict()
    after = train(tmp_path, [], **changes).loss.state_dict()
    still = [name for name in after if torch.equal(before[name], after[name])]
    assert not [name for name in still if name.startswith(("predictor", "queue", "teacher"))]
