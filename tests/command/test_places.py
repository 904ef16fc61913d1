"""Folders and files that a command cannot write to, and a run's folder that was copied."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sslengine.command.front import main
from sslengine.config.resolve import resolve
from sslengine.config.show import show
from tests.command.photos import SMALL, write_photos

FAILED, TYPED = 1, 2
RUN = ["--method=simclr", "--model=resnet10t", *SMALL]
# Nobody, the owner of the machine included, makes a file in it.
SEALED = Path("/proc/sys")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), each=4)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Without checkpoints."""
    folder = tmp_path / "run"
    folder.mkdir()
    chosen = ["config=quickstart/simclr", "config.MACHINE.DEVICE=cpu"]
    (folder / "config.yaml").write_text(show(resolve([*chosen, f"config.CHECKPOINT.DIR={folder}"])))
    return folder


@pytest.mark.skipif(not SEALED.exists() or os.access(SEALED, os.W_OK), reason="not here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("embed {run} {photos} --out={sealed}/x.npy", "the folder {sealed} is not writable"),
        ("predict {run} {photos} --picture={sealed}/x.png", "the folder {sealed} is not writable"),
        ("export {run} {sealed}/x", "the folder {sealed} is not writable"),
        ("judge --features {rows} --out={sealed}/x.json", "the folder {sealed} is not writable"),
        ("train {photos} --method=simclr --out={sealed}/x", "{sealed}/x cannot be written"),
    ],
)
def test_a_folder_that_is_not_writable(
    arguments: str, message: str, run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before anything is computed: the run has no checkpoint to compute with."""
    np.save(run.parent / "rows.npy", np.eye(4))
    named = {"run": run, "photos": photos, "sealed": SEALED, "rows": run.parent / "rows.npy"}
    assert main(arguments.format(**named).split()) == TYPED
    assert message.format(**named) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "embed {run} {photos} --out={file}/x.npy",
        "export {run} {file}/x",
        "judge --features {rows} --out={file}/x.json",
        "train {photos} --method=simclr --out={file}",
        "train {photos} --method=simclr --out={file}/x",
    ],
)
def test_a_file_in_the_place_of_a_folder(
    arguments: str, run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(run.parent / "rows.npy", np.eye(4))
    file = run.parent / "file"
    file.write_text("mine")
    named = {"run": run, "photos": photos, "file": file, "rows": run.parent / "rows.npy"}
    assert main(arguments.format(**named).split()) == TYPED
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_run_that_cannot_keep_its_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.chmod(0o555)
    try:
        assert main(["judge", str(run)]) == TYPED
    finally:
        run.chmod(0o755)
    assert f"{run} is not writable" in capsys.readouterr().err


@pytest.mark.slow
def test_a_copied_run_is_not_resumed_elsewhere_in_silence(photos: Path, tmp_path: Path) -> None:
    """By its config.yaml, which names the folder where it was trained."""
    first, copy = tmp_path / "first", tmp_path / "copy"
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


def test_two_trainings_into_one_folder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second says who has it, and leaves the first's files alone."""
    out = tmp_path / "run"
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
