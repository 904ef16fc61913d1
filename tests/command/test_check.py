"""`sslengine check` and `sslengine explain`: what is said of files of configs and of their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from sslengine.command.arguments import make_parser
from sslengine.command.check import (
    FOREIGN,
    PART,
    RUN,
    find,
    find_problem,
    main,
)
from sslengine.command.explain import GAP
from sslengine.command.explain import main as main_explain
from tests.config.recipes import recipe
from tests.data.augment.lists import COLOUR, CROP, FLIP, TENSOR, TWO, own
from tests.data.pictures import write_tree


def _write(path: Path, tree: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = tree if isinstance(tree, str) else yaml.safe_dump({"config": tree})
    path.write_text(f"# @package _global_\n{text}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine") / "config"
    _write(folder / "clr" / "run.yaml", recipe())
    _write(folder / "clr" / "huge.yaml", recipe(MODEL__TRUNK__RESNETS={"DEPTH": 200, "WIDTH_MULTIPLIER": 16}, MODEL__HEAD__PARAMS=[]))  # fmt: skip
    _write(
        folder / "clr" / "models" / "deep.yaml", {"MODEL": {"TRUNK": {"RESNETS": {"DEPTH": 34}}}}
    )
    _write(folder / "clr" / "models" / "odd.yaml", {"MODEL": {"TRUNC": {"NAME": "resnet"}}})
    _write(folder / "data" / "small.yaml", {"DATA": {"TRAIN": {"DATA_LIMIT": 8}}})
    _write(folder / "broken.yaml", "config: [")
    return folder.parent


def test_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), "--json"]) == 1
    document, told = capsys.readouterr()
    found = {each["file"]: each["verdict"] for each in json.loads(document)}
    assert sorted(found) == [
        "broken", "clr/huge", "clr/models/deep", "clr/models/odd", "clr/run", "data/small",
    ]  # fmt: skip
    assert {name for name in found if found[name] == "wrong"} == {"broken", "clr/models/odd"}
    assert "6 files: 4 right, 2 wrong" in told
    assert "2 runs: right" in told
    assert (
        "config.MODEL.TRUNC: neither a key nor the name of a model. Did you mean 'TRUNK'?" in told
    )
    assert "not valid YAML" in told
    assert "clr/huge" not in told.replace("config=clr/huge", "")  # built without memory


def test_a_frozen_model_is_built_for_the_engine_of_its_benchmark(tmp_path: Path) -> None:
    frozen = {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True, "FREEZE_TRUNK_ONLY": True}
    tree = recipe(MODEL__FEATURE_EVAL_SETTINGS=frozen, MODEL__HEAD__PARAMS=[])
    _write(tmp_path / "config" / "trains.yaml", tree)
    given = make_parser("sslengine.command.check").parse_args([str(tmp_path)])
    assert "nothing to train" in find_problem(("config=trains",), tmp_path, given)
    _write(tmp_path / "config" / "svm.yaml", {**tree, "SVM": {"costs": {"costs_list": [1.0]}}})
    assert find_problem(("config=svm",), tmp_path, given) == ""


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["/nowhere/at/all"])
    assert "there is no folder or file /nowhere/at/all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tree", "role"),
    [
        ("config: [", RUN),  # so that it is told
        ("config:\n", RUN),
        ("MODEL: {DEPTH: 3}\n", FOREIGN),
        ("defaults: [other]\nconfig: {}\n", RUN),
        ("defaults: [/config/quickstart/simclr, _self_]\nconfig: {}\n", RUN),
        ("defaults: [/config/base/optimization/warmup, _self_]\nconfig: {LOSS: {}}\n", PART),
        (recipe(), RUN),
        ({"MODEL": {}, "OPTIMIZER": {}, "DATA": {"TRAIN": {"TRANSFORMS": []}}}, PART),
        ({"MODEL": {}, "OPTIMIZER": {}}, PART),
        ({"DATA": {"TRAIN": {"DATA_SOURCES": ["disk_folder"]}}}, PART),
        ({"LOSS": {"name": "x"}}, PART),
        (
            "engine_name: extract_features\nconfig: {MODEL: {}, DATA: {TEST: {DATA_SOURCES: [x]}}}\n",
            RUN,
        ),
        ({"SVM": {}, "MODEL": {}, "DATA": {"TEST": {"DATA_SOURCES": ["x"]}}}, RUN),
        ({"IMG_RETRIEVAL": {}, "MODEL": {}}, RUN),
    ],
)
def test_what_a_file_is(tmp_path: Path, tree: Any, role: str) -> None:
    _write(tmp_path / "config" / "file.yaml", tree)
    (file,) = find(tmp_path)
    assert file.role == role


# ---- explain


def config(folder: Path, transforms: list[dict[str, Any]], **data: Any) -> list[str]:
    """The arguments that name it."""
    train = {"TRANSFORMS": transforms, "COLLATE_FUNCTION": "multicrop_collator", **data}
    tree = recipe(**{f"DATA__TRAIN__{key}": value for key, value in train.items()})
    (folder / "mine.yaml").write_text("# @package _global_\n" + yaml.safe_dump({"config": tree}))
    return ["config=mine", f"--config-dir={folder}", "--count=3"]


def test_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [TWO, CROP, own("Posterize"), COLOUR, FLIP, *TENSOR]
    arguments = config(tmp_path, entries)
    assert main_explain([*arguments, "config.DATA.AUGMENT_BACKEND=pil"]) == 0
    told = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines()]
    what = [row[1:3] for row in rows if len(row) == 4]
    known, later = "known, on images of any kind", "after collate, on the device"
    assert what == [
        ["", "read and decoded"],
        ["ImgReplicatePil", known],
        ["RandomResizedCrop", known],
        ["tests.data.augment.lists:Posterize", "falls back to PIL"],
        ["ImgPilColorDistortion", known],
        ["RandomHorizontalFlip", known],
        ["ToTensor", later],
        ["Normalize", later],
    ]
    times = [row[3] for row in rows if len(row) == 4]
    assert all(float(time) >= 0 for time in times[:-1])
    assert times[-1] == ""
    assert "as a whole with the back-end pil: " in told
    assert "images leave the workers as uint8" in told
    assert "images: generated" not in told


def test_data_that_is_not_there_is_generated_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = config(tmp_path, [TWO, CROP, *TENSOR], DATA_SOURCES=["disk_folder"])
    assert main_explain(arguments) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "images: generated, for the config's cannot be read: config.DATA" in told


def test_the_picture_shows_what_was_read_and_its_views(tmp_path: Path) -> None:
    """Without chance, both can be told from the files; normalised values are taken back."""
    write_tree(tmp_path / "images", "a/0.png", "b/1.png")
    large = {"name": "Resize", "size": [112, 112], "interpolation": 0}
    arguments = config(
        tmp_path, [TWO, large, *TENSOR], DATA_SOURCES=["disk_folder"],
        DATA_PATHS=[str(tmp_path / "images")], DATA_LIMIT=-1,
    )  # fmt: skip
    picture = tmp_path / "views.png"
    assert main_explain([*arguments, f"--picture={picture}", "--images=2", "--views=3"]) == 0
    with Image.open(picture) as opened:
        sheet = np.asarray(opened)
    assert sheet.shape == (GAP + 2 * (112 + GAP), GAP + 4 * (112 + GAP), 3)
    for row, name in enumerate(("a/0.png", "b/1.png")):
        with Image.open(tmp_path / "images" / name) as opened:
            expected = np.asarray(opened.resize((112, 112), Image.Resampling.NEAREST))
        top = GAP + row * (112 + GAP)
        for column in (1, 2, 3):
            left = GAP + column * (112 + GAP)
            assert (sheet[top : top + 112, left : left + 112] == expected).all()
