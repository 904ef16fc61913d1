"""The examples of the pages on judging and retrieval."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from sslengine.evaluate.store import Store, short_name

PAGE = (Path(__file__).parents[2] / "docs/judging/python.md").read_text()


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    draw = torch.Generator().manual_seed(0)
    for split in ("train", "test"):
        labels = torch.arange(60) % 3
        features = labels.unsqueeze(1) * torch.eye(3)[labels] + torch.randn(60, 3, generator=draw)
        depends_on = {"images_sha256": split}
        folder = tmp_path / "runs/mine/features"
        store = Store.make(folder / f"{split}-{short_name(depends_on)}", depends_on, 60)
        for shard in store.missing():
            rows = torch.tensor(shard.images)
            store.write(shard, {"flatten": features[rows]}, labels[rows], rows)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    metrics, notes, few = capsys.readouterr().out.splitlines()
    assert set(re.findall(r"'([\w@]+)'", metrics)) == {"mAP", "R@1", "R@5", "R@10"}
    assert notes == "()"
    assert "1 shots" in few


def test_functions_are_there() -> None:
    names = re.findall(r"`((?:few_shot|svm|low_shot|retrieval|answers)[.]\w[.\w]*)`", PAGE)
    assert len(names) >= 7
    for name in names:
        module, function = name.rsplit(".", 1)
        assert callable(getattr(importlib.import_module(f"sslengine.evaluate.{module}"), function))


# ---- docs/judging/retrieval.md: its example, its commands, what it says of queries.


RETRIEVAL_PAGE = (Path(__file__).parents[2] / "docs/judging/retrieval.md").read_text()


def test_the_example_of_retrieval_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", RETRIEVAL_PAGE, re.DOTALL)
    torch.manual_seed(0)
    exec(code, {})
    copies, medium = capsys.readouterr().out.splitlines()
    assert copies == str({"mAP": 100.0, "R@1": 100.0})
    assert 0 < float(medium) <= 100
