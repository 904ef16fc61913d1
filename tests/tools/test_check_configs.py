from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.config.recipes import recipe
from tools.check_configs import File, Trial, bases, find, judge, main


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
    assert file == File(root, "clr/models/deep", is_run=False)
    assert file.option == "+config/clr/models=deep"


def test_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(root), "--jobs=2"]) == 1
    told = capsys.readouterr().out
    assert "6 files: 4 right, 2 wrong" in told
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
    assert "nothing" in told
    assert "2 files: 2 right, 0 wrong" in told


def test_what_fails_while_it_runs(root: Path) -> None:
    """The head does not fit the trunk: known only when a batch goes through."""
    wrong = ("config.MODEL.HEAD.PARAMS=[[mlp,{dims: [31,8]}]]",)
    trial = Trial(("config=clr/run",), root, train=True, overrides=wrong)
    assert "31" in judge(trial, timeout=120).problem


def test_one_that_takes_too_long(root: Path) -> None:
    trial = Trial(("config=clr/run",), root, train=True)
    assert judge(trial, timeout=0.001).problem == "not done after 0 s"


def test_one_that_is_killed(root: Path) -> None:
    """As by the kernel, for its memory: the plugin stands for the file's model."""
    folder = root / "plugins"
    folder.mkdir()
    (folder / "ends_it.py").write_text("import os; os.kill(os.getpid(), 9)")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        trial = Trial(("config=clr/run", "config.PLUGINS=[ends_it]"), root, train=False)
        assert judge(trial, timeout=120).problem.startswith("the process ended with status -9")


def test_a_folder_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["/nowhere/at/all"])
    assert "there is no folder or file /nowhere/at/all" in capsys.readouterr().err
