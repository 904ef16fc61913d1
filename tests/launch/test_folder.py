from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sslengine.checkpoint.contents import run_folder
from sslengine.errors import ConfigError
from sslengine.launch.cli import main
from sslengine.launch.folder import expect_run_folder, make_run_folder
from tests.config.recipes import resolved


def test_the_runs_folder(tmp_path: Path) -> None:
    assert run_folder(resolved(CHECKPOINT__DIR="a/b").config) == Path("a/b")
    assert run_folder(resolved(CHECKPOINT__DIR="~/x").config) == Path.home() / "x"


@pytest.mark.parametrize("name", ["file", "file/inside"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="config.CHECKPOINT.DIR"):
        make_run_folder(resolved(CHECKPOINT__DIR=str(tmp_path / name)).config)


def test_a_full_disk_is_an_error_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolved(CHECKPOINT__DIR=str(tmp_path)).config
    make_run_folder(config)
    full = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with pytest.raises(ConfigError, match="has 4096 bytes free, too few for a run. Delete files"):
        make_run_folder(config)


def test_a_folder_of_others_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for name in ("paper.tex", "config.yaml", "a", "b", "c", "d", "e"):
        (tmp_path / name).write_text("mine")
    config = resolved(CHECKPOINT__DIR=str(tmp_path)).config
    with pytest.raises(ConfigError) as error:
        expect_run_folder(config)
    text = str(error.value)
    assert text.startswith(f"config.CHECKPOINT.DIR: {tmp_path} contains files that ")
    assert "(a, b, c, config.yaml, d and 2 more)" in text
    assert str(tmp_path / "run") in text
    assert main(["config=quickstart/simclr", f"config.CHECKPOINT.DIR={tmp_path}"]) == 2
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 7


def test_the_current_folder_of_an_unset_shell_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config=quickstart/simclr", "config.CHECKPOINT.DIR="]) == 2
    assert "it is empty" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("link", "message"), [(False, "is no folder"), (True, "is a link to .*gone, .* mounted?")]
)
def test_checkpoints_that_are_not_there_are_no_new_run(
    tmp_path: Path, link: bool, message: str
) -> None:
    config = resolved(CHECKPOINT__DIR=str(tmp_path / "run")).config
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.parent.mkdir()
    if link:
        checkpoints.symlink_to(tmp_path / "gone")
    else:
        checkpoints.write_text("mine")
    with pytest.raises(ConfigError, match=f"config.CHECKPOINT.DIR: {checkpoints} {message}"):
        expect_run_folder(config)
    if link:
        (tmp_path / "gone").mkdir()
        expect_run_folder(config)
