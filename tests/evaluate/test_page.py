"""The examples of the pages on judging and retrieval."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score

from sslengine.contrib.retrieval.landmarks import LEVELS, PRECISIONS
from sslengine.evaluate.options import SUITES
from sslengine.evaluate.retrieval import QUERIES, RECALLS, retrieval
from sslengine.evaluate.store import Store, short_name
from tests.engines.test_instance_retrieval import _revisited, _run

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


def test_what_is_said_of_the_protocol() -> None:
    """Suites, k, the number of queries; queries alone; scikit-learn's precision; equal features."""
    assert {"retrieval", "view_retrieval"} <= {*SUITES["frozen"]}
    assert {f"R@{k}" for k in RECALLS} <= {*re.findall(r"`(R@\d+)`", RETRIEVAL_PAGE)}
    assert f"more than {QUERIES:,} images" in RETRIEVAL_PAGE
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 8 + [1] * 7 + [2])
    features = torch.eye(3)[labels] + torch.randn(16, 3, generator=draw)
    found = retrieval(features, labels)
    unit = torch.nn.functional.normalize(features.double())
    precisions = []
    for query in range(15):
        others = [each for each in range(16) if each != query]
        wanted = labels[others] == labels[query]
        precisions.append(average_precision_score(wanted, (unit @ unit[query])[others]))
    assert found.metrics["mAP"] == pytest.approx(100 * sum(precisions) / 15, rel=1e-6)
    assert found.notes == ("1 of 16 queries have no other image of their class",)
    assert not retrieval(torch.ones(16, 3), labels).metrics


def test_what_is_said_of_the_datasets(tmp_path: Path) -> None:
    """By the command's engine, with the keys of the page."""
    given = dict(re.findall(r"config\.IMG_RETRIEVAL\.(\w+)=(\w+)", RETRIEVAL_PAGE))
    names = (given.pop("EVAL_DATASET_NAME"), given.pop("TRAIN_DATASET_NAME"))
    for name in names:
        _revisited(tmp_path / "data", name)
    own = {"EVAL_DATASET_NAME": names[0], "TRAIN_DATASET_NAME": names[1], **given}
    metrics = _run(tmp_path / "run", tmp_path / "data", **own)[names[0]]["metrics"]
    wanted = {f"{level} {name}" for level in LEVELS for name in (
        "mAP", *(f"mP@{k}" for k in PRECISIONS))}  # fmt: skip
    assert {*metrics} == wanted
    ranked = json.loads((tmp_path / "run" / "rankings.json").read_text())
    assert [sorted(each) for each in ranked] == [[*range(6)]] * 2
