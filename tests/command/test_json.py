"""`--json`: stdout is one JSON document for every verb that has it."""

from __future__ import annotations

import json
import os
import re
import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import sslengine
from sslengine.command.arguments import keep_apart, make_parser, print_document
from sslengine.command.front import VERBS, main
from tests.command.photos import write_photos
from tests.config.recipes import recipe
from tests.tail import slow_but

# Of the folder `here`: what is asked, and a key of the document, or of its first entry.
ASKED = {
    "judge": ("run --set=EVALUATE.PROTOCOLS=[]", "scores"),
    "judge --features": ("rows.npz rows.npz", "scores"),
    "embed": ("run photos --out=features.npy --workers=0", "feature_dim"),
    "predict": ("run photos/dark/0.png", "images"),
    "export": ("run out --to=state-dict", "feature_dim"),
    "report": ("run", "metrics"),
    "rank": ("run/checkpoints --workers=0 --views=0", "metrics"),
    "explain": ("config=quickstart/simclr --count=1", "transforms"),
    "check": ("configs", "verdict"),
    "list": ("methods", None),
    "doctor": ("photos", "what"),
    "doctor RUN": ("run", "what"),
}
# What stderr has of each verb that may take long, where it does not compute a part of another.
PROGRESS = {
    "judge": "linear probe 3/3: raw pixels, 16x16, then metrics without labels",
    "judge --features": "kNN 1/1: given, rows, then linear probe",
    "embed": "computing features: 8 images in ",
    "predict": "predictions: 0/1 images; features of train by ",
    "export": "converting the network to state-dict, then writing and proving",
    "rank": "ranking: 1 checkpoints in ",
    "explain": "timing each transform on 1 images",
    "check": "checking files: 2 files in ",
    "doctor": "opening images: 8 images in ",
}
# Of `check` tests/command/test_check.py tests it too.
SLOW = {"judge", "check", "rank"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    photos = write_photos(folder / "photos", each=4)
    sslengine.train(
        photos, "simclr", model="resnet10t", epochs=1, size=32, workers=0, device="cpu",
        val=0.25, out=folder / "run",
    )  # fmt: skip
    rows = sslengine.embed(folder / "run", photos, workers=0)
    np.savez(folder / "rows.npz", features=rows.features, labels=rows.labels)
    (folder / "configs").mkdir()
    trees = {"right": recipe(), "wrong": {**recipe(), "NO_SUCH_SECTION": {"key": 1}}}
    for name, tree in trees.items():
        text = "# @package _global_\n" + yaml.safe_dump({"config": tree})
        (folder / "configs" / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.usefixtures("progress_at_once")
@pytest.mark.parametrize("asked", slow_but(set(ASKED) - SLOW, ASKED))
def test_stdout_is_one_document(
    asked: str, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(here)
    verb, *more = asked.split()
    options = [each for each in more if each.startswith("--")]
    arguments, key = ASKED[asked]
    wrong_is_there = verb == "check"
    status = main([verb, *options, *arguments.split(), "--json"])
    out, err = capfd.readouterr()
    assert status == int(wrong_is_there), err
    document = json.loads(out)
    first = document[0] if isinstance(document, list) else document
    assert first if key is None else key in first
    if verb == "check":
        assert {each["file"]: each["verdict"] for each in document} == {
            "right": "right", "wrong": "wrong"
        }, json.dumps(document)  # fmt: skip
        assert "2 files: 1 right, 1 wrong" in err
    if asked == "judge":
        assert document == json.loads((here / "run" / "evaluation.json").read_text())
    if asked in PROGRESS:
        assert PROGRESS[asked] in re.sub(r", \d+:\d\d:\d\d", "", err)  # on a slow machine


def test_every_verb_that_has_it_is_tested() -> None:
    def has_it(verb: str) -> bool:
        parser: ArgumentParser = make_parser(import_module(f"sslengine.command.{verb}").__name__)
        return any("--json" in action.option_strings for action in parser._actions)

    assert {each.split()[0] for each in ASKED} == {verb for verb in VERBS if has_it(verb)}


@pytest.mark.parametrize("verb", ["judge", "embed", "export", "report", "explain"])
def test_stdout_is_empty_if_something_is_wrong(
    verb: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    more = {"embed": [str(here / "photos"), f"--out={here}/x.npy"], "export": [str(here / "x")]}
    assert main([verb, str(here / "nothing"), *more.get(verb, []), "--json"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")


def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    content: Any = {"a": [1.5, float("nan"), (float("inf"), "x")], "b": None}
    print_document(content)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"a": [1.5, None, [None, "x"]], "b": None}


def test_what_children_print_is_kept_apart(capfd: pytest.CaptureFixture[str]) -> None:
    with keep_apart(True):
        sys.stdout.write("here\n")
        os.system("echo there")
    with keep_apart(False):
        sys.stdout.write("shown\n")
        sys.stdout.flush()
    assert capfd.readouterr() == ("shown\n", "here\nthere\n")
