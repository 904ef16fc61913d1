"""Folders of runs that are sharded, damaged, copied or in use, or have unusual names."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from sslengine.checkpoint.files import list_checkpoints
from sslengine.command import replay
from sslengine.command.front import main
from sslengine.config.resolve import Resolved
from sslengine.errors import readable
from tests.command.photos import SMALL, write_photos
from tests.config.recipes import recipe


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "run")


def make(folder: Path, **scores: Any) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"config": recipe()}))
    if scores:
        judged = {"features": "trained", "layer": "flatten", "knn": {}, **scores}
        (folder / "evaluation.json").write_text(json.dumps({"scores": [judged]}))
    return folder


def test_checkpoints_of_a_sharded_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("model_phase0.shards", "model_phase1.2.shards", "mine.shards"):
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "checkpoint.torch").symlink_to("model_phase1.2.shards")
    (run / "checkpoints" / "model_phase0.shards.json").write_text("{}")
    assert main(["report", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "checkpoints  checkpoint.torch, model_phase0.shards, model_phase1.2.shards\n" in shown


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", b"- a\n- b\n", "expected `config:` with keys below it"),
        ("config.yaml", b"config: [", "not valid YAML"),
        ("evaluation.json", b'{"scores": [{"knn": {}, "layer": "x"}]}', "is no report"),
        ("evaluation.json", b'{"scores": {"features": 1}}', "is no report"),
        (
            "evaluation.json",
            b'{"scores": [{"features": "trained", "layer": "x", "knn": {"1": "high"}}]}',
            "is no report",
        ),
    ],
)
def test_a_damaged_file_is_named(
    run: Path, name: str, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(run / "whole", linear=1.0)
    (run / "evaluation.json").write_bytes((run / "whole" / "evaluation.json").read_bytes())
    (run / name).write_bytes(content)
    assert main(["report", str(run)]) in (1, 2)
    told = " ".join(capsys.readouterr().err.split())
    assert str(run / name) in told
    assert message in told


def test_a_score_that_is_no_number_comes_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores: dict[str, Any] = {
        "low": {"linear": 20.0}, "none": {"linear": float("nan")}, "never": {},
        "high": {"linear": 90.0},
    }  # fmt: skip
    folders = [str(make(tmp_path / name, **score)) for name, score in scores.items()]
    for order in (folders, folders[::-1]):
        assert main(["report", *order, "--json"]) == 0
        found = [Path(each["name"]).name for each in json.loads(capsys.readouterr().out)["rows"]]
        assert found[:2] == ["high", "low"]
        assert {*found[2:]} == {"none", "never"}


def test_the_best_layer_is_one_with_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, values in enumerate([(float("nan"), 50.0), (50.0, float("nan"))]):
        run = make(tmp_path / str(number))
        scores = [
            {"features": "trained", "layer": str(value), "knn": {"1": value}} for value in values
        ]
        (run / "evaluation.json").write_text(json.dumps({"scores": scores}))
        assert main(["report", str(run), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["scores"] == {"knn@1": 50.0}


@pytest.mark.parametrize("name", ["it's nan", "nan", "a, b=[c] {d}", "back\\slash", "both\\' \""])
def test_a_run_whose_name_needs_quotes_is_replayed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Resolved] = []
    monkeypatch.setattr(replay, "start", lambda runs: started.extend(runs) or 0)
    monkeypatch.chdir(tmp_path)
    assert main(["replay", str(make(Path(name)))]) == 0
    assert [each.config.CHECKPOINT.DIR for each in started] == [name]


HOSTILE = "[red]\x1b]0;title\x07\x1b[2J\u202e"


@pytest.mark.parametrize("times", [1, 2])
def test_names_of_strangers_command_neither_the_terminal_nor_rich(
    tmp_path: Path, times: int, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    folder = make(Path(f"run{HOSTILE}"), linear=1.0)
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    tree["config"]["LOSS"]["name"] = f"[/red]{HOSTILE}"
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / f"model{HOSTILE}.torch").write_text("")
    assert main(["report", *[str(folder)] * times]) == 0
    shown = capsys.readouterr().out
    assert "run[red]" in shown
    assert readable(shown, but="\n") == shown


def test_a_class_of_strangers_does_not_command_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", f"b{HOSTILE}"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "1.png")
    main(["doctor", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "b[red]" in shown
    assert readable(shown, but="\n") == shown


# ---- What verbs print in a terminal of 80 columns: lines end between words.


WIDTH = 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def photos(classifier: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = shutil.copytree(classifier, tmp_path_factory.mktemp("here") / "copy", symlinks=True)
    return sorted((Path(folder) / "images").rglob("*.png"))


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
        "rank": [os.path.relpath(list_checkpoints(run / "checkpoints")[0], photos[0].parent),
                 "--workers=0"],
    }  # fmt: skip
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    assert main([verb, *given.get(verb, [str(run)])]) == 0

    lines = re.sub("\x1b[^m]*m", "", terminal.getvalue()).splitlines()  # without colours
    # A path is one word, which is not broken.
    assert [each for each in lines if len(each) > WIDTH and " " in each.strip()] == []


# ---- A run's folder that was copied, or that another process has.


FAILED = 1
RUN = ["--method=simclr", "--model=resnet10t", *SMALL]


@pytest.mark.slow
def test_a_copied_run_is_not_resumed_elsewhere_in_silence(tmp_path: Path) -> None:
    """By its config.yaml, which names the folder where it was trained."""
    first, copy, photos = (tmp_path / name for name in ("first", "copy", "photos"))
    write_photos(photos, each=4)
    assert main(["train", str(photos), *RUN, f"--out={first}"]) == 0
    shutil.copytree(first, copy, symlinks=True)

    def resumed(*more: str) -> str:
        command = [sys.executable, "-m", "sslengine", "config=config", "--config-dir", str(copy)]
        done = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    told = resumed()
    assert f"To resume here: config.CHECKPOINT.DIR={copy}" in told.replace("\n", " ")
    told = resumed(f"config.CHECKPOINT.DIR={copy}", "config.OPTIMIZER.num_epochs=2")
    assert "To resume here" not in told
    assert f"resumed from {copy}/checkpoints/" in told
    steps = [_last_step(each) for each in (first, copy)]
    assert steps[1] == 2 * steps[0]


def _last_step(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return max(json.loads(line).get("iteration", 0) for line in lines)


def test_two_trainings_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second says who has it, and leaves the first's files alone."""
    out, photos = tmp_path / "run", write_photos(tmp_path / "photos", each=4)
    holds = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.read()"
    )
    assert main(["train", str(photos), *RUN, f"--out={out}"]) == 0
    kept = {each: each.read_bytes() for each in out.rglob("*") if each.is_file()}
    other = subprocess.Popen([sys.executable, "-c", holds, str(out / ".lock")], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        capsys.readouterr()
        assert main(["train", str(photos), *RUN, "--epochs=2", f"--out={out}"]) == FAILED
        assert f"another run is using {out}" in capsys.readouterr().err
    finally:
        other.communicate("")
    changed = {each.name for each, content in kept.items() if each.read_bytes() != content}
    assert changed == {".lock"}, "truncated by the process above"
