"""`sslengine`: verbs, help and lists, which import no torch."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import sslengine
from sslengine import __version__
from sslengine.command import completion
from sslengine.command.front import VERBS, main
from sslengine.command.list import KINDS
from sslengine.command.recipes import methods
from sslengine.config.compose import shipped_configs
from sslengine.config.sections import read
from sslengine.errors import CheckpointError
from sslengine.methods.base import Method
from sslengine.methods.step import Step
from sslengine.models.frozen import FrozenOptions
from sslengine.models.options import ModelOptions
from sslengine.testing.runs import SMALL
from tests.config.recipes import resolved


def without_torch(*arguments: str) -> str:
    """What the command prints, in a process that has not imported torch by its end."""
    code = (
        "import sys; from sslengine.command.front import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as stop: status = stop.code\n"
        "assert not status, status\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class AsksForMasks(Method):
    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        return (output * sample["mask"]).mean()


def test_an_error_of_the_users_code_begins_there_and_says_what_the_batch_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {**SMALL, "LOSS.name": f"'{__name__}:AsksForMasks'", "CHECKPOINT.DIR": f"'{tmp_path}'"}
    arguments = [f"config.{key}={value}" for key, value in small.items()]
    assert main(["config=testing/small", *arguments]) == 1
    told = capsys.readouterr().err
    (before, _, trace) = told.partition("Traceback")
    assert re.search(
        r"KeyError, where the batch is .*input \(8, 3, \d+, \d+\), target \(8,\)", before
    )
    assert trace.rstrip().endswith("KeyError: 'mask'")
    assert re.findall(r'File "(.*?)"', trace) == [__file__]
    assert str(Path(sslengine.__file__).parent) in (tmp_path / "log.txt").read_text()


def test_what_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, about in lines if about] == [*KINDS, "--vissl"]
    found = []
    for arguments in ([], ["methods"]):
        assert main(["list", *arguments, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert (found[0].keys(), found[1]) == (KINDS.keys(), methods())


def test_lists_come_without_torch() -> None:
    lines = {line.split()[0]: line for line in without_torch("list", "methods").splitlines()}
    assert [*lines] == methods()
    needs = r"\S+ +\S.*\. .*\. .*\. From [\d,]+ images; [\d.]+ GiB for \d+ images a step\."
    assert all(re.fullmatch(needs, line) for line in lines.values()), lines
    assert "photos/dino" in json.loads(without_torch("list", "recipes", "--json"))
    assert "vit_small_patch14_dinov2" in without_torch("list", "models", "vit_*dino*").split()


def test_help_of_every_verb_comes_without_torch_and_shows_an_example() -> None:
    code = (
        "import sys, io, contextlib; from sslengine.command.front import VERBS, main\n"
        "for verb in VERBS:\n"
        "    out = io.StringIO()\n"
        "    try:\n"
        "        with contextlib.redirect_stdout(out): main([verb, '--help'])\n"
        "    except SystemExit as stop: assert not stop.code, verb\n"
        "    assert f'  sslengine {verb} ' in out.getvalue(), out.getvalue()\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_said_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sslengine {__version__}\n"
    assert main(["trian", "x"]) == 2
    assert "'trian' is no verb of sslengine. Did you mean 'train'" in capsys.readouterr().err


def test_a_config_is_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    for start in ([], ["train"], ["--config-dir=tests"], ["train", "--config-dir", "tests"]):
        assert main([*start, "config=quickstart/simclr", "--show"]) == 0
        assert "simclr_info_nce_loss" in capsys.readouterr().out
    assert main(["config=quickstart/simcl"]) == 2
    assert "quickstart/simclr" in capsys.readouterr().err


COMMAND = [sys.executable, "-m", "sslengine"]


def _written_to(stdout: int, *arguments: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(stdout)
    return done.returncode, done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_enough(options: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert _written_to(writing, "list", "models", *options) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_without_room() -> None:
    status, text = _written_to(os.open("/dev/full", os.O_WRONLY), "list", "models")
    assert (status, text) == (1, "error: what was to be written: No space left on device.\n")


def test_a_name_that_a_folder_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """stdout stays empty, as docs/command.md says of errors."""

    def fails(arguments: object) -> int:
        raise IsADirectoryError(
            errno.EISDIR, "Is a directory", "new", None, "runs/x/evaluation.json"
        )

    monkeypatch.setattr("sslengine.command.list.main", fails)
    assert main(["list", "models"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "error: runs/x/evaluation.json: Is a directory.\n")


def test_a_broken_pipe_that_is_not_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a worker that has died: no reader of the output."""

    def fails(arguments: object) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sslengine.command.list.main", fails)
    with open(os.devnull, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        with pytest.raises(BrokenPipeError):
            main(["list", "models"])


@pytest.mark.parametrize("arguments", [["report", "~/gone"], ["rank", "~/gone"],
                                       ["export", "~/gone", "out"], ["train", "--weights=~/gone",
                                        "--recipe=simclr/cpu", "x"]])  # fmt: skip
def test_home_is_found_where_a_shell_leaves_it(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(arguments) != 0
    assert f"{tmp_path}/gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["train", "photos", "--weights", ""], "--weights"),
        (["train", ""], "argument 1"),
        (["train", "photos", "--out="], "--out"),
        (["judge", "run", "--train", "", "--val", "x"], "--train"),
    ],
)
def test_a_variable_of_the_shell_that_is_not_set(
    arguments: list[str], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told == f"error: {where}: nothing was given. Is a variable of the shell not set?\n"


def test_empty_weights_in_python(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--weights: expected a file or a folder"):
        sslengine.train(tmp_path, method="simclr", weights="")


def test_home_is_found_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = resolved(MODEL__WEIGHTS_INIT__PARAMS_FILE="~/w.torch").config
    path = read(config, ModelOptions).WEIGHTS_INIT.PARAMS_FILE
    expected = f"{tmp_path}/w.torch"
    assert path == expected
    assert FrozenOptions(weights="~/w.torch").weights == expected


# ---- The completions, in the shells themselves: those that are installed.


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion.main(["bash"])
    (tmp_path / "complete").write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        script = (f". {tmp_path}/complete; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
                  "_sslengine_words; echo ${COMPREPLY[@]}")  # fmt: skip
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed("sslengine", "e") == ["embed", "export", "explain"]
    assert completed("sslengine", "train", "--me") == ["--method"]
    assert completed("sslengine", "list", "train") == ["train-steps"]
    # Values of flags, however they are written; names of files are left to the shell.
    assert completed("sslengine", "train", "x", "--method", "sims") == ["simsiam"]
    assert completed("sslengine", "train", "x", "--method", "=", "sims") == ["simsiam"]
    assert completed("sslengine", "export", "x", "--to", "hf") == ["hf-dinov2"]
    assert "cpu" in completed("sslengine", "embed", "--device", "=")
    assert completed("sslengine", "config", "=", "quickstart/sims") == ["quickstart/simsiam"]
    assert completed("sslengine", "train", "config", "=", "photos/sims") == ["photos/simsiam"]
    assert completed("sslengine", "embed", "r") == completed("sslengine", "embed", "r", "") == []
    assert completed("sslengine", "embed", "r", "x", "--out", "") == []


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        completion.main([shell])
        (tmp_path / "_sslengine").write_text(capsys.readouterr().out)
        return tmp_path / "_sslengine"

    return write


def test_all_that_is_offered_as_a_config_is_one() -> None:
    for name in completion._configs():
        assert (shipped_configs() / f"{name}.yaml").is_file(), name


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_every_verb_and_flag_is_in_each(shell: str, written: Callable[[str], Path]) -> None:
    """Of shells that are not installed here."""
    text = written(shell).read_text()
    for verb in VERBS:
        for word in completion.words(verb):
            assert word in text
