"""The completions, in the shells themselves: those that are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sslengine.command import completion
from sslengine.command.front import VERBS
from sslengine.config.compose import shipped_configs


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


# What is typed, and the words that may be there instead of the last one.
TYPED = {
    "emb": ["embed"],
    "train x --meth": ["--method"],
    "train x --method sims": ["simsiam"],
    "list trai": ["train-steps"],
    "train x --recipe moco/8": ["moco/8gpu"],
    "export x --to hf": ["hf-dinov2"],
    "predict x --net": ["--network"],
    "train config=photos/sims": ["config=photos/simsiam"],
    "config=quickstart/sims": ["config=quickstart/simsiam"],
    "train x --method=sims": ["--method=simsiam"],
    # A verb is the first word alone: of `list` no flag of `train`.
    "list train --met": ["--met"],
}


@pytest.fixture
def written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        completion.main([shell])
        (tmp_path / "_sslengine").write_text(capsys.readouterr().out)
        return tmp_path / "_sslengine"

    return write


class Zsh:
    """An interactive shell, to which keys are sent."""

    def __init__(self, folder: Path) -> None:
        self.terminal, its = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(folder)}
        self.process = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=its, stdout=its, stderr=its, cwd=folder, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(its)
        self.send(f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; bindkey -e; "
                  "unsetopt prompt_cr; print -r -- $((40+1)):\n", "41:()")  # fmt: skip

    def send(self, keys: str, expected: str, seconds: float = 60) -> str:
        """Returns what the group of the pattern is, at the beginning of a line."""
        os.write(self.terminal, keys.encode())
        text, end = "", time.monotonic() + seconds
        while (found := re.search(f"\n{expected}\r?\n", text)) is None:
            ready, _, _ = select.select([self.terminal], [], [], max(0, end - time.monotonic()))
            assert ready, text
            text += os.read(self.terminal, 2**16).decode()
        return found[1]

    def completed(self, line: str) -> str:
        """The line after the key for completion: printed in quotes, and not run."""
        keys = f"{line}\t\x01print -r -- $((40+2)): '\x05'\n"
        return self.send(keys, "42: (.*)").rstrip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh(written: Callable[[str], Path]) -> None:
    folder = written("zsh").parent
    shell = Zsh(folder)
    try:
        for line, words in TYPED.items():  # the first of them, too
            head = line.rpartition(" ")[0]
            assert shell.completed(f"sslengine {line}") == " ".join(
                filter(None, ["sslengine", head, words[0]])
            )
    finally:
        shell.close()


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
