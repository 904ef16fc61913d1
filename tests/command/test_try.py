"""`sslengine try`: what a method does right, and where in its file it goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sslengine.command.front import main
from sslengine.testing.promises import BrokenPromise
from sslengine.testing.trial import Trial
from tests import warm
from tests.command import tried
from tests.integration.command import ROOT
from tests.integration.test_adding_a_method import block

SMALL = ["config=testing/small", "config.LOSS.Sound.dim=6"]
DOC = ROOT / "docs" / "adding_a_method.md"


def trial(name: str, *said: str) -> Trial:
    said = said or ("config=testing/small",)
    return Trial(f"{tried.__name__}:{name}", said, lambda rows: None)


def line_of(text: str) -> str:
    """Name the line of the file that is `text`, as a traceback does."""
    lines = Path(tried.__file__).read_text().splitlines()
    (number,) = (number for number, each in enumerate(lines, 1) if each.strip().startswith(text))
    return f'File "{tried.__file__}", line {number}'


def test_a_right_method_passes_and_its_modules_are_shown() -> None:
    shown: list[tuple[str, ...]] = []
    method = trial("Sound", *SMALL)
    method._show = shown.extend
    assert [step() for step in method.steps()[:3]]
    rows = {name: more for name, *more in shown}
    assert rows["loss.head"] == ["(2, 4, 6)", "646", "trained"]
    assert rows["batch"][0] == "[(4, 3, 16, 16), (4, 3, 16, 16)]"
    assert rows["trunk"][2] == "trained"
    assert rows["loss.teacher"] == ["", "646", "frozen"]


@pytest.mark.parametrize(
    ("name", "step", "names"),
    [
        ("Unused", "parameters", ["loss.spare.weight", "loss.spare.bias"]),
        ("Counts", "state", ["Counts.calls"]),
        ("Detached", "one_batch", []),
    ],
)
def test_what_is_wrong_in_one_process_is_named(name: str, step: str, names: list[str]) -> None:
    with pytest.raises(BrokenPromise) as refused:
        getattr(trial(name), step)()
    assert sorted(refused.value.names) == sorted(names)


@pytest.mark.slow
def test_a_loss_of_one_ranks_images_is_refused() -> None:
    with pytest.raises(BrokenPromise, match="2 ranks"):
        trial("OfOneRank").two_ranks()


@pytest.mark.parametrize(
    ("name", "line", "error"),
    [("Raises", "return (z @ z)", "RuntimeError"), ("WrongAxis", "return F.normalize(self.head(self.norm", "RuntimeError")],
)  # fmt: skip
def test_an_error_ends_at_the_authors_line(
    capsys: pytest.CaptureFixture[str], name: str, line: str, error: str
) -> None:
    assert main(["try", f"{tried.__name__}:{name}", "config=testing/small"]) == 1
    told = capsys.readouterr().out
    at = told.index(line_of(line))
    _, code, *rest = told[at:].splitlines()
    assert code.strip().startswith(line)
    assert any(each.startswith(error) for each in rest[:3])
    assert "sslengine/" not in told[told.index("Traceback") :].replace("sslengine/tests", "")
    assert "loss.trunk" in told  # the shapes that lead to it


def test_the_debugger_opens_at_the_authors_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pdb

    opened = []
    monkeypatch.setattr(pdb, "post_mortem", opened.append)
    assert main(["try", f"{tried.__name__}:Raises", "config=testing/small", "--pdb"]) == 1
    (trace,) = opened
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert "z" in trace.tb_frame.f_locals


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command(tmp_path: Path, photos: Path) -> None:
    """The method of the page on a folder of images, and one that breaks several promises."""
    (tmp_path / "contrast.py").write_text(block(DOC.read_text(), "`contrast.py`", "python"))
    words = ["try", "contrast.py:SimCLR", "dim=16", "--data", str(photos)]
    done = warm.run([sys.executable, "-m", "sslengine", *words], cwd=tmp_path)
    assert (done.returncode, done.stdout.count("\nok ")) == (0, 4), done.stdout + done.stderr
    (tmp_path / "mine.py").write_text(Path(tried.__file__).read_text())
    done = warm.run(
        [sys.executable, "-m", "sslengine", "try", "mine.py:RaisesOnRanks"], cwd=tmp_path
    )
    assert (done.returncode, done.stdout.count("\nok ")) == (1, 3), done.stdout + done.stderr
    assert 'raise ValueError("there are several")\nValueError' in done.stdout
    assert {each.name for each in tmp_path.iterdir()} <= {"contrast.py", "mine.py", "__pycache__"}


@pytest.mark.parametrize("name", ["simclr_info_nce_loss", "mae"])
def test_a_name_has_the_network_and_the_heads_of_its_quickstart(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trial, "steps", lambda self: [self.parameters])
    assert main(["try", name]) == 0, capsys.readouterr()
