"""What verbs print in a terminal of 80 columns: lines end between words."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest

from sslengine.checkpoint.files import list_checkpoints
from sslengine.command.front import main
from tests.predictor.runs import make_classifier

WIDTH = 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_classifier(tmp_path_factory.mktemp("here"), OPTIMIZER__num_epochs=1)


@pytest.mark.parametrize("verb", ["doctor", "predict", "report", "rank"])
def test_lines_fit_a_terminal(
    verb: str, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = photos[0].parents[2] / "run"
    for number in range(9):  # a long line of the report
        (run / "checkpoints" / f"model_phase{100 + number}.torch").touch()
    monkeypatch.chdir(photos[0].parent)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    given = {
        "doctor": [".."],
        "predict": [str(run), photos[0].name, "--nearest=0"],
        "rank": [
            os.path.relpath(list_checkpoints(run / "checkpoints")[0], photos[0].parent),
            "--workers=0",
        ],
    }
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    assert main([verb, *given.get(verb, [str(run)])]) == 0

    lines = re.sub("\x1b[^m]*m", "", terminal.getvalue()).splitlines()  # without colours
    # A path is one word, which is not broken.
    assert [each for each in lines if len(each) > WIDTH and " " in each.strip()] == []
