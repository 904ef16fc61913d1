from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine.command import check
from sslengine.command.check import (
    FOREIGN,
    OVERLAY,
    PART,
    RUN,
    File,
    FileVerdict,
    bases,
    find,
    judge_composition,
    main,
    make_parser,
)
from tests.config.recipes import recipe
from tests.engine.test_task import SUPERVISED


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


def test_runs_and_parts(root: Path) -> None:
    files = {file.name: file for file in find(root)}
    assert {name for name, file in files.items() if file.is_run} == {
        "broken", "clr/huge", "clr/run",
    }  # fmt: skip
    assert {file.root for file in files.values()} == {root}
    near = bases(files["clr/models/deep"], list(files.values()))
    assert [file.name for file in near] == ["clr/huge", "clr/run"]
    everywhere = bases(files["data/small"], list(files.values()))
    assert len(everywhere) == 3


def test_a_file_alone_knows_the_runs_of_its_folder(root: Path) -> None:
    (file,) = find(root / "config" / "clr" / "models" / "deep.yaml")
    assert file == File(root, "clr/models/deep", PART)
    assert file.option == "+config/clr/models=deep"


def test_the_config_of_a_run_is_a_file_in_no_folder_of_configs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine" / "config.yaml"
    _write(path, recipe())
    assert main([str(path)]) == 0
    (file,) = find(path)
    assert (file.root, file.name) == (path.parent, "config")


def test_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), "--json"]) == 1
    document, told = capsys.readouterr()
    found = {each["file"]: each["verdict"] for each in json.loads(document)}
    assert sorted(found) == [
        "broken", "clr/huge", "clr/models/deep", "clr/models/odd", "clr/run", "data/small",
    ]  # fmt: skip
    assert {name for name in found if found[name] == "wrong"} == {"broken", "clr/models/odd"}
    assert "6 files: 4 right, 2 wrong" in told
    assert re.search(r"^family +right +wrong\n\. +0 +1\nclr +2 +0\nclr/models +1 +1\n", told, re.M)
    assert (
        "config.MODEL.TRUNC: neither a key nor the name of a model. Did you mean 'TRUNK'?" in told
    )
    assert "not valid YAML" in told
    assert "clr/huge" not in told.replace("config=clr/huge", "")  # built without memory


def test_a_frozen_model_is_built_for_the_engine_of_its_benchmark(tmp_path: Path) -> None:
    frozen = {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True, "FREEZE_TRUNK_ONLY": True}
    tree = recipe(MODEL__FEATURE_EVAL_SETTINGS=frozen, MODEL__HEAD__PARAMS=[])
    _write(tmp_path / "config" / "trains.yaml", tree)
    given = make_parser().parse_args([str(tmp_path)])
    assert "nothing to train" in judge_composition(("config=trains",), tmp_path, given).problem
    _write(tmp_path / "config" / "svm.yaml", {**tree, "SVM": {"costs": {"costs_list": [1.0]}}})
    assert judge_composition(("config=svm",), tmp_path, given).problem == ""


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
        ({"MODEL": {}, "OPTIMIZER": {}, "DATA": {"TRAIN": {"TRANSFORMS": []}}}, OVERLAY),
        ({"MODEL": {}, "OPTIMIZER": {}}, OVERLAY),
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


def test_a_file_of_another_program_need_not_be_valid(tmp_path: Path) -> None:
    """detectron2's files in VISSL's folder have keys twice."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "theirs.yaml").write_text("MODEL:\n  DEPTH: 50\n  DEPTH: 101\n")
    (tmp_path / "config" / "ours.yaml").write_text("config:\n  A: 1\n  A: 2\n")
    assert {file.name: file.role for file in find(tmp_path)} == {"theirs": FOREIGN, "ours": RUN}


def test_a_folder_that_has_folders_of_configs_in_it(tmp_path: Path) -> None:
    """As VISSL's own: a name is what `config=` takes with that folder."""
    _write(tmp_path / "configs" / "config" / "pretrain" / "run.yaml", recipe())
    (file,) = find(tmp_path)
    assert (file.root, file.name) == (tmp_path / "configs", "pretrain/run")


def test_parts_of_a_run_that_only_lacks_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part fits its own run, and not the one elsewhere, which takes two views."""
    everstore = {"DATA__TRAIN__DATA_SOURCES": ["everstore"],
                 "DATA__TRAIN__LABEL_SOURCES": ["everstore"]}  # fmt: skip
    folder = tmp_path / "config"
    _write(folder / "other" / "run.yaml", recipe())
    _write(folder / "places" / "run.yaml", recipe(**{**SUPERVISED, **everstore}))
    one_view = {"DATA": {"TRAIN": {"TRANSFORMS": [{"name": "ToTensor"}]}}}
    _write(folder / "places" / "transforms" / "one.yaml", one_view)
    _write(folder / "places" / "data" / "own.yaml", {"DATA": {"TRAIN": {"DATA_SOURCES": ["everstore"]}}})  # fmt: skip
    assert main([str(tmp_path), "--json"]) == 1
    found = {each["file"]: each for each in json.loads(capsys.readouterr().out)}
    wrong = {name for name, each in found.items() if each["verdict"] == "wrong"}
    assert wrong == {"places/run", "places/data/own"}
    assert all("everstore" in found[name]["problem"] for name in wrong)
    assert found["places/transforms/one"]["tried_as"][0] == "config=places/run"


ANSWERS: dict[str, str] = {}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was tried. A composition has the answer of its first argument, and of both."""
    found: list[tuple[str, ...]] = []

    def answer(arguments: tuple[str, ...], *_: Any) -> FileVerdict:
        found.append(arguments)
        return FileVerdict(
            arguments, ANSWERS.get(" ".join(arguments), ANSWERS.get(arguments[0], ""))
        )

    ANSWERS.clear()
    monkeypatch.setattr(check, "judge_composition", answer)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        _write(tmp_path / "config" / f"{name}.yaml", recipe())
    _write(tmp_path / "config" / "models" / "part.yaml", {"MODEL": {}})
    return tmp_path


def test_a_part_is_tried_on_right_runs_alone_and_the_same_mistake_twice_is_its_own(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    ANSWERS["config=a"] = "wrong itself"
    assert main([str(tree)]) == 1
    assert asked[3:] == [("config=b", "+config/models=part")]
    asked.clear()
    ANSWERS.clear()
    ANSWERS.update({f"config={run} +config/models=part": "bad" for run in "abc"})
    main([str(tree)])
    assert [each[0] for each in asked[3:]] == ["config=a", "config=b"]
    assert "1 parts: 0 right, 1 wrong" in capsys.readouterr().out


def test_a_part_at_the_top_is_right_in_a_run_that_has_it(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """`config=` selects one file, so it is in the `defaults` of others alone."""
    _write(tree / "config" / "part.yaml", {"OPTIMIZER": {}})
    users = "defaults: [/config/a, /config/part, _self_]\n"
    _write(tree / "config" / "user.yaml", users)
    assert main([str(tree)]) == 0
    assert sorted(asked[-2:]) == [("config=a", "+config/models=part"), ("config=user",)]
    capsys.readouterr()
    ANSWERS["config=user"] = "wrong itself"
    assert main([str(tree)]) == 1
    assert "no right run has /config/part there" in capsys.readouterr().out


def test_a_file_of_another_program_is_left_out(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "config" / "other.yaml").write_text("_BASE_: x\nMODEL: {}\n")
    assert main([str(tree)]) == 0
    told = capsys.readouterr().out
    assert "left out foreign other" in told
    assert "1 files of other programs left out" in told
    assert not [each for each in asked if "config=other" in each]
