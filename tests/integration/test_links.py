"""Links in a run's folder that comes from elsewhere: nothing is written where they lead."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sslengine.atomic import write_whole
from sslengine.command.front import run
from sslengine.errors import CheckpointError
from sslengine.launch import cli
from sslengine.launch.rank import run_rank
from tests.config.recipes import resolved

JUDGE = ["--train=images", "--val=images", "--workers=0", "--device=cpu"]
VERBS: dict[str, Callable[[], int]] = {
    "judge": lambda: run("judge", ["run", *JUDGE]),
    "replay": lambda: run("replay", ["run"]),
    "predict": lambda: run("predict", ["run", "images/class0/00.png"]),
    "rank": lambda: run("rank", ["run/checkpoints", "--workers=0", "--views=0"]),
    "train": lambda: cli.main(
        ["config=config", "--config-dir=run", "config.CHECKPOINT.DIR=run",
         "config.OPTIMIZER.num_epochs=2"]
    ),
}  # fmt: skip


@pytest.fixture
def here(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `run`, its images, and what a user has in `mine`."""
    shutil.copytree(classifier, tmp_path, dirs_exist_ok=True, symlinks=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "entry", "target"),
    [
        ("judge", "log.txt", "mine/file"), ("judge", ".lock", "mine/file"),
        ("judge", "features", "mine"), ("replay", "log.txt", "mine/new"),
        ("judge", "finetune/some/checkpoints", "mine"), ("replay", "log.txt", "mine/file"),
        ("predict", "predictor", "mine"), ("rank", "features", "mine"),
        ("train", "superseded", "mine"), ("train", "checkpoints", "mine"),
    ],
)  # fmt: skip
def test_a_folder_whose_entry_leads_out_of_it_is_refused(
    here: Path, verb: str, entry: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    link = here / "run" / entry
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(here / target)
    assert VERBS[verb]() == 2
    assert f"run/{entry}: " in capsys.readouterr().err
    assert [each.name for each in (here / "mine").iterdir()] == ["file"]
    assert (here / "mine" / "file").read_text() == "mine"


def test_a_users_own_links_are_followed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the run's folder, within it, and to another disk for what is only read."""
    (here / "run").rename(here / "elsewhere")
    (here / "run").symlink_to(here / "elsewhere")
    (here / "run" / "checkpoints").rename(here / "checkpoints")
    (here / "run" / "checkpoints").symlink_to(here / "checkpoints")
    (here / "run" / "newest.yaml").symlink_to("config.yaml")
    assert VERBS["predict"]() == 0, capsys.readouterr().err
    assert (here / "elsewhere" / "predictor" / "index.torch").is_file()
    (here / "run" / "predictor").rename(here / "predictor")
    (here / "run" / "predictor").symlink_to(here / "predictor")
    trusting = ["run", "images/class0/00.png", "--trust-config"]
    assert run("predict", trusting) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.txt", "mine"), (".lock", "mine"), ("metrics.jsonl", '{"iteration": 0}\n'),
    ],
)  # fmt: skip
def test_a_file_that_is_a_link_is_not_written_to_by_a_users_own_run_either(
    tmp_path: Path, name: str, content: str
) -> None:
    """content: what a run would leave there, and continue."""
    file = tmp_path / "file"
    file.write_text(content)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(file)
    own = resolved(CHECKPOINT__DIR=str(tmp_path / "run"), HOOKS__WRITERS=["log", "json", "csv"])
    start = partial(run_rank, own, join=False)
    if name == ".lock":
        with pytest.raises(CheckpointError, match=r"\.lock"):
            start()
    else:
        start()
    assert file.read_text() == content


def test_a_temporary_file_that_is_a_link_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name can be guessed: it has the number of the process."""
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("os.getpid", lambda: 7)
    (tmp_path / ".evaluation.json.7.tmp").symlink_to("file")
    with pytest.raises(OSError, match="evaluation"):
        write_whole(tmp_path / "evaluation.json", b"{}")
    assert (tmp_path / "file").read_text() == "mine"
