"""`sslengine`: verbs, help and lists, which import no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sslengine import __version__
from sslengine.command import completion
from sslengine.command.front import VERBS, main


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


def test_lists_come_without_torch() -> None:
    assert "simclr" in without_torch("list", "methods").split()
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


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completion.main(["bash"])
    (tmp_path / "complete").write_text(capsys.readouterr().out)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        script = (f". {tmp_path}/complete; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
                  "_sslengine; echo ${COMPREPLY[@]}")  # fmt: skip
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


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    completion.main([shell])
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
