"""The example of docs/judging/python.md, and its table of functions."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from sslengine.evaluation.store import Store, name_of

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
        store = Store.make(folder / f"{split}-{name_of(depends_on)}", depends_on, 60)
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
    names = re.findall(
        r"`((?:few_shot|svm|low_shot|retrieval|calibration|out_of_set)[.]\w[.\w]*)`", PAGE
    )
    assert len(names) >= 8
    for name in names:
        if name == "retrieval.descriptors":
            continue
        module, function = name.rsplit(".", 1)
        assert callable(
            getattr(importlib.import_module(f"sslengine.evaluation.{module}"), function)
        )
