"""Hostile files and links in the folder of a run: nothing is run, nothing is followed."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.atomic import write_whole
from sslengine.checkpoint import files, retention
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.command.front import run
from sslengine.config.resolve import resolve
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from sslengine.errors import CheckpointError, ConfigError
from sslengine.launch import cli
from sslengine.launch.rank import run_rank
from tests.config.recipes import resolved


class _Evil:
    """What pickle calls is `os.system`."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self._mark}'",)


@pytest.fixture
def evil_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that can be imported, and the file that is there afterwards."""
    mark = tmp_path / "code_was_run"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("evil_module", None)


def _train(folder: Path, **overrides: Any) -> None:
    run_rank(resolved(CHECKPOINT__DIR=str(folder), **overrides), join=False)


def _poison(state: dict[str, Any]) -> dict[str, Any]:
    """Code named in each place of a checkpoint where a config may stand."""
    names = {
        "PLUGINS": ["evil_module"],
        "LOSS": {"name": "evil_module:Evil"},
        "HOOKS": {"EXTRA": ["evil_module:Evil"]},
    }
    state["config"] = names
    state["classy_state_dict"]["config"] = names
    return state


def test_code_that_a_checkpoints_config_names_is_not_imported(
    tmp_path: Path, evil_module: Path
) -> None:
    _train(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    path, state = files.newest(folder) or pytest.fail("no checkpoint")
    weights = tmp_path / "weights.torch"
    torch.save(_poison(state), weights)
    _train(tmp_path / "from_weights", MODEL__WEIGHTS_INIT__PARAMS_FILE=str(weights))
    state["classy_state_dict"].pop("config")  # an unknown key of the state is an error by itself
    files.write(state, folder, path.name)
    _train(tmp_path / "run", OPTIMIZER__num_epochs=3)
    assert not evil_module.exists()
    assert "evil_module" not in sys.modules


@pytest.mark.parametrize("place", ["weights", "checkpoint"])
def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(
    tmp_path: Path, place: str
) -> None:
    mark = tmp_path / "code_was_run"
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    if place == "weights":
        torch.save({"classy_state_dict": _Evil(mark)}, tmp_path / "weights.torch")
        overrides = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(tmp_path / "weights.torch")}
    else:
        files.write(
            {"classy_state_dict": _Evil(mark)}, tmp_path / "run/checkpoints", "model_phase0.torch"
        )
        overrides = {}
    with pytest.raises(CheckpointError):
        _train(tmp_path / "run", **overrides)
    assert not mark.exists()


def test_a_link_under_a_checkpoints_name_is_replaced_or_removed_not_followed(
    tmp_path: Path,
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("model_phase0.torch", "model_phase0.json", files.POINTER, ".model_phase1.tmp"):
        (folder / name).symlink_to(precious)
    files.remove_leftovers(folder)
    files.write({"a": 1}, folder, "model_phase0.torch", {"number": 1})
    (folder / "model_phase1.torch").symlink_to(precious)
    files.write({"a": 2}, folder, "model_phase2.torch", {"number": 3})
    retention.remove_surplus(folder, CheckpointOptions(KEEP_LAST=1))
    assert precious.read_text() == "mine"


def _png_of(width: int, height: int) -> bytes:
    """A header that promises much, and little after it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))


def test_an_image_that_would_fill_the_memory_counts_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(_png_of(60_000, 60_000))
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(tmp_path)], LABEL_TYPE="sample_index"
    )
    data = SSLDataset(options, "TRAIN", seed=0, replace=False)
    assert data.__getitems__([(0, 0)]).unreadable == [0]
    assert "DecompressionBombError" in data.why_unreadable(0)


def test_a_config_that_calls_something_is_an_error_and_calls_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "code_was_run"
    (tmp_path / "evil.yaml").write_text(
        f"# @package _global_\nconfig:\n  X: !!python/object/apply:os.system [touch {mark}]\n"
    )
    with pytest.raises(ConfigError):
        resolve(["config=evil"], [str(tmp_path)])
    assert not mark.exists()


# ---- Links in a run's folder that comes from elsewhere: nothing is written where they lead.


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
        ("predict", "features", "mine"), ("rank", "features", "mine"),
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
    assert (here / "elsewhere" / "features").is_dir()
    (here / "run" / "features").rename(here / "features")
    (here / "run" / "features").symlink_to(here / "features")
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
