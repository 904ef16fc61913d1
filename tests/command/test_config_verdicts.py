from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine.command import config_verdicts as check_configs
from sslengine.command.check import main
from sslengine.command.checked_files import FOREIGN, OVERLAY, PART, RUN, File, bases, find
from sslengine.command.config_trials import Trial, Verdict, Worker, for_this_machine
from sslengine.config.compose import compose
from tests.config.recipes import recipe
from tests.engine.test_task import SUPERVISED, WITH_TEST


def judge(trial: Trial, timeout: float) -> Verdict:
    worker = Worker()
    try:
        return worker.judge(trial, timeout)
    finally:
        worker.end()


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
    assert main([str(path), "--jobs=1"]) == 0
    (file,) = find(path)
    assert (file.root, file.name) == (path.parent, "config")


def test_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), "--jobs=2", "--json"]) == 1
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


def test_two_steps(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(root / "config" / "clr" / name) for name in ("run.yaml", "models/deep.yaml")]
    smaller = ["--set", "config.MODEL.TRUNK.RESNETS.WIDTH_MULTIPLIER=0.0625"]
    smaller += ["--set", "config.MODEL.HEAD.PARAMS=[[mlp,{dims: [32,8]}]]"]
    smaller += ["--set", "config.MODEL.TRUNK.RESNETS.BLOCKS=[1,1,1,1]"]
    smaller += ["--set", "config.MODEL.TRUNK.RESNETS.BLOCK=basic"]
    assert main([*files, "--train", "--all", *smaller]) == 0
    told = capsys.readouterr().out
    assert told.count("] right ") == 2
    assert "2 files: 2 right, 0 wrong" in told


def test_a_frozen_model_is_built_for_the_engine_of_its_benchmark(tmp_path: Path) -> None:
    frozen = {"EVAL_MODE_ON": True, "EXTRACT_TRUNK_FEATURES_ONLY": True, "FREEZE_TRUNK_ONLY": True}
    tree = recipe(MODEL__FEATURE_EVAL_SETTINGS=frozen, MODEL__HEAD__PARAMS=[])
    _write(tmp_path / "config" / "trains.yaml", tree)
    assert "nothing to train" in judge(Trial(("config=trains",), tmp_path, False), 120).problem
    _write(tmp_path / "config" / "svm.yaml", {**tree, "SVM": {"costs": {"costs_list": [1.0]}}})
    assert judge(Trial(("config=svm",), tmp_path, train=True), 120).problem == ""


def test_what_fails_while_it_runs(root: Path) -> None:
    """The head does not fit the trunk: known only when a batch goes through."""
    wrong = ("config.MODEL.HEAD.PARAMS=[[mlp,{dims: [31,8]}]]",)
    trial = Trial(("config=clr/run",), root, train=True, overrides=wrong)
    assert "31" in judge(trial, timeout=120).problem


def test_one_that_takes_too_long(root: Path) -> None:
    trial = Trial(("config=clr/run",), root, train=True)
    assert judge(trial, timeout=0.001).problem == "not finished after 0 s"


def test_one_that_is_killed(root: Path) -> None:
    """As by the kernel, for its memory: the plugin stands for the file's model."""
    folder = root / "plugins"
    folder.mkdir()
    (folder / "ends_it.py").write_text("import os; os.kill(os.getpid(), 9)")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        trial = Trial(("config=clr/run", "config.PLUGINS=[ends_it]"), root, train=False)
        assert judge(trial, timeout=120).problem.startswith("the process ended with status -9")


def test_what_its_processes_import_knows_all_names() -> None:
    code = (
        "from sslengine.command import config_trials; from sslengine.registry import TRAIN_STEPS;"
        "assert 'standard_train_step' in TRAIN_STEPS"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


AFTER_ANOTHER = """
import multiprocessing, sys
if __name__ == "__main__":  # what is above, the processes import too
    from sslengine.command.front import main
    other = multiprocessing.get_context("forkserver").Process(target=print)
    other.start()
    other.join()
    sys.exit(main(["check", sys.argv[1], "--jobs=1"]))
"""


@pytest.mark.slow
def test_the_fork_server_may_be_there_already(tmp_path: Path) -> None:
    """Started for something else, it has imported other modules."""
    folder = tmp_path / "configs"
    folder.mkdir()
    text = yaml.safe_dump({"config": recipe()})
    (folder / "right.yaml").write_text(f"# @package _global_\n{text}")
    (tmp_path / "after.py").write_text(AFTER_ANOTHER)
    command = [sys.executable, str(tmp_path / "after.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
    assert main([str(tmp_path), "--jobs=1", "--json"]) == 1
    found = {each["file"]: each for each in json.loads(capsys.readouterr().out)}
    wrong = {name for name, each in found.items() if each["verdict"] == "wrong"}
    assert wrong == {"places/run", "places/data/own"}
    assert all("everstore" in found[name]["problem"] for name in wrong)
    assert found["places/transforms/one"]["tried_as"][0] == "config=places/run"


TWO_LABELS: dict[str, Any] = {
    **SUPERVISED, "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 2]}]],
    "LOSS": {"name": "bce_logits_multiple_output_single_target"},
    "DATA__TRAIN__TRANSFORMS": [{"name": "RandomResizedCrop", "size": 224}, {"name": "ToTensor"}],
}  # fmt: skip


def test_a_trial_has_labels_of_the_head_and_small_images(tmp_path: Path) -> None:
    _write(tmp_path / "config" / "two.yaml", recipe(**TWO_LABELS))
    _write(tmp_path / "config" / "tests.yaml", recipe(**SUPERVISED, **WITH_TEST, TEST_ONLY=True))
    arguments = ["config=two"]
    small = for_this_machine(arguments, tmp_path, sizes=True)
    composed = compose([*arguments, *small], [str(tmp_path)])
    transforms = composed.last_value("config.DATA.TRAIN.TRANSFORMS")
    assert [each.get("size") for each in transforms] == [None, 64, None]
    for name in ("two", "tests"):
        assert judge(Trial((f"config={name}",), tmp_path, train=True), 240).problem == ""


class _NoWorker(Worker):
    """Says what the test says, and notes what it was asked."""

    answers: dict[str, str] = {}
    asked: list[tuple[str, ...]] = []

    def judge(self, trial: Trial, timeout: float) -> Verdict:
        self.asked.append(trial.arguments)
        return Verdict(trial.arguments, self.answers.get(trial.arguments[0], ""))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    monkeypatch.setattr(_NoWorker, "asked", [])
    monkeypatch.setattr(_NoWorker, "answers", {})
    monkeypatch.setattr(check_configs, "Worker", _NoWorker)
    return _NoWorker.asked


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        _write(tmp_path / "config" / f"{name}.yaml", recipe())
    _write(tmp_path / "config" / "models" / "part.yaml", {"MODEL": {}})
    return tmp_path


def test_a_part_is_tried_on_right_runs_alone_and_the_same_mistake_twice_is_its_own(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    _NoWorker.answers = {"config=a": "wrong itself"}
    assert main([str(tree), "--jobs=1"]) == 1
    assert asked[3:] == [("config=b", "+config/models=part")]
    asked.clear()
    on_parts = {("config=a", 2): "bad", ("config=b", 2): "bad", ("config=c", 2): "bad"}

    def judged(self: Worker, trial: Trial, timeout: float) -> Verdict:
        asked.append(trial.arguments)
        problem = on_parts.get((trial.arguments[0], len(trial.arguments)), "")
        return Verdict(trial.arguments, problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NoWorker, "judge", judged)
        main([str(tree), "--jobs=1"])
    assert [each[0] for each in asked[3:]] == ["config=a", "config=b"]
    assert "1 parts: 0 right, 1 wrong" in capsys.readouterr().out


def test_a_part_at_the_top_is_right_in_a_run_that_has_it(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """`config=` selects one file, so it is in the `defaults` of others alone."""
    _write(tree / "config" / "part.yaml", {"OPTIMIZER": {}})
    users = "defaults: [/config/a, /config/part, _self_]\n"
    _write(tree / "config" / "user.yaml", users)
    assert main([str(tree), "--jobs=1"]) == 0
    assert sorted(asked[-2:]) == [("config=a", "+config/models=part"), ("config=user",)]
    capsys.readouterr()
    _NoWorker.answers = {"config=user": "wrong itself"}
    assert main([str(tree), "--jobs=1"]) == 1
    assert "no right run has /config/part there" in capsys.readouterr().out


def test_a_file_of_another_program_is_left_out(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "config" / "other.yaml").write_text("_BASE_: x\nMODEL: {}\n")
    assert main([str(tree), "--jobs=1"]) == 0
    told = capsys.readouterr().out
    assert "left out foreign other" in told
    assert "1 files of other programs left out" in told
    assert not [each for each in asked if "config=other" in each]


def test_each_verdict_is_printed_when_it_is_there(
    tree: Path, asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []

    def judged(self: Worker, trial: Trial, timeout: float) -> Verdict:
        printed.append(capsys.readouterr().out)
        return Verdict(trial.arguments, "" if len(trial.arguments) == 1 else "no")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NoWorker, "judge", judged)
        main([str(tree), "--jobs=1", "--all"])
    # Runs are before parts: when the part is tried, all of theirs are there.
    assert [f"run     {name}" in "".join(printed) for name in "abc"] == [True] * 3
