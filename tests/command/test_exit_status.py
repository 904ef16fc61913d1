"""The exit status: one table for all verbs, docs/command.md."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sslengine
from sslengine.command.front import VERBS, main
from sslengine.config.resolve import resolve
from sslengine.config.show import show
from sslengine.errors import ConfigError, DataError, Preempted
from tests.command.photos import write_photos

TAKEN = b"neither image nor weights"
RIGHT, FAILED, TYPED, RESUMABLE, INTERRUPTED = 0, 1, 2, 75, 130
SIMCLR = "config=quickstart/simclr"
# Nobody, the owner of the machine included, makes a file in it.
SEALED = Path("/proc/sys")

# Below {here}: photos/, of which one image is broken in broken/; empty/, a folder; run/, a run without
# checkpoints; taken.npy, taken/x; train.npz and other.npz, features of other classes; bad.torch.
CASES: dict[str, list[tuple[int, str]]] = {
    "train": [
        (RIGHT, "{here}/photos --method=simclr --model=resnet18 --device=cpu --show"),
        (FAILED, "{here}/empty --method=simclr"),
        (TYPED, "{here}/photos --method=simcl"),
        (TYPED, "{here}/photos --method=simclr --weights={here}/nothing --out={here}/new"),
        (
            TYPED,
            "{here}/photos --method=distillation --device=cpu --show "
            "--set=LOSS.distillation_loss.teacher.timm=resnet18x",
        ),
        (TYPED, "{here}/nothing --method=simclr"),
        (TYPED, "{here}/nothing-{{0..1}}.tar --method=simclr"),
        (TYPED, "config=quickstart/simcl"),
        (TYPED, f"{SIMCLR} config.LOSS.nam=x"),
        (TYPED, f"{{here}}/photos --method=simclr --out={SEALED}/x"),
        (TYPED, "{here}/photos --method=simclr --out={here}/taken.npy"),
        (TYPED, "{here}/photos --method=simclr --out={here}/taken.npy/x"),
    ],
    "judge": [
        (RIGHT, "--features {here}/train.npz {here}/train.npz"),
        (FAILED, "--features {here}/train.npz {here}/other.npz"),
        (TYPED, "--features {here}/nothing.npz"),
        (TYPED, "{here}/nothing"),
        (TYPED, "{here}/run --train={here}/photos"),
        (TYPED, f"--features {{here}}/train.npz --out={SEALED}/x.json"),
        (TYPED, "--features {here}/train.npz --out={here}/taken.npy/x.json"),
    ],
    "embed": [
        (FAILED, "{here}/run {here}/photos --out={here}/new.npy"),
        (TYPED, "{here}/run {here}/nothing --out={here}/new.npy"),
        (TYPED, "{here}/nothing {here}/photos --out={here}/new.npy"),
        (TYPED, "{here}/run {here}/photos --out={here}/taken.npy"),
        (TYPED, "{here}/run {here}/photos --out={here}/new.xls"),
        (TYPED, f"{{here}}/run {{here}}/photos --out={SEALED}/x.npy"),
        (TYPED, "{here}/run {here}/photos --out={here}/taken.npy/x.npy"),
    ],
    "predict": [
        (FAILED, "{here}/run {here}/photos/dark/0.png"),
        (TYPED, "{here}/nothing {here}/photos/dark/0.png"),
        (TYPED, "{here}/run {here}/photos/dark/0.png --picture={here}/taken.npy"),
        (TYPED, f"{{here}}/run {{here}}/photos/dark/0.png --picture={SEALED}/x.png"),
    ],
    "export": [
        (FAILED, "{here}/run {here}/new"),
        (TYPED, "{here}/nothing {here}/new"),
        (TYPED, "{here}/run {here}/taken"),
        (TYPED, "{here}/run {here}/new --to=tim"),
        (TYPED, f"{{here}}/run {SEALED}/x"),
        (TYPED, "{here}/run {here}/taken.npy/x"),
    ],
    "convert": [
        (FAILED, f"{SIMCLR} --from={{here}}/bad.torch --to=vissl --out={{here}}/new.torch"),
        (TYPED, f"{SIMCLR} --from={{here}}/bad.torch --to=vissel --out={{here}}/new.torch"),
        (TYPED, f"{SIMCLR} --from={{here}}/bad.torch --to=vissl --out={{here}}/taken.npy"),
    ],
    "make": [
        (RIGHT, "permutations --count=5 {here}/five.npy"),
        (RIGHT, "file-lists {here}/photos {here}/lists"),
        (FAILED, "file-lists {here}/empty {here}/new"),
        (TYPED, "file-lists {here}/nothing {here}/new"),
        (TYPED, "permutations --count=5 {here}/five.txt"),
        (TYPED, "permutations --count=5 {here}/taken.npy"),
        (TYPED, "whole-checkpoint {here}/bad.torch --out={here}/new.torch"),
    ],
    "report": [
        (RIGHT, "{here}/run"),
        (TYPED, "{here}/nothing"),
        (TYPED, "{here}/run {here}/nothing"),
    ],
    "rank": [
        (TYPED, "{here}/run"),
        (TYPED, "{here}/run/checkpoints"),
        (TYPED, "{here}/nothing/checkpoints"),
    ],
    "explain": [
        (RIGHT, f"{SIMCLR} --count=1"),
        (TYPED, "config=quickstart/simcl"),
        (TYPED, f"{SIMCLR} --count=1 --picture={{here}}/views.xyz"),
        (TYPED, f"{SIMCLR} --count=1 --picture={{here}}/photos/dark/0.png"),
        (TYPED, f"{SIMCLR} --count=1 --picture={{here}}/nothing/views.png"),
    ],
    "check": [
        (RIGHT, "{here}/photos"),
        (TYPED, "{here}/nothing"),
    ],
    "replay": [(TYPED, "{here}/nothing")],
    "list": [(RIGHT, "methods"), (TYPED, "method")],
    "try": [(TYPED, "simcl")],
    "doctor": [
        (RIGHT, ""),
        (RIGHT, "{here}/photos"),
        (FAILED, "{here}/broken"),
        (FAILED, "{here}/empty"),
        (TYPED, "{here}/nothing"),
    ],
    "completion": [(RIGHT, "bash"), (TYPED, "csh")],
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    for name in ("photos", "broken"):
        write_photos(folder / name, each=2)
    for name in ("broken/dark/0.png", "taken/x", "bad.torch", "taken.npy"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(TAKEN)
    (folder / "empty").mkdir()
    rows = np.random.default_rng(0).normal(size=(8, 3))
    np.savez(folder / "train.npz", features=rows, labels=np.array(["cat", "dog"] * 4))
    np.savez(folder / "other.npz", features=rows, labels=np.array(["cow"] * 8))
    changes = ["config.MACHINE.DEVICE=cpu", f"config.CHECKPOINT.DIR='{folder}/run'"]
    (folder / "run" / "checkpoints").mkdir(parents=True)
    (folder / "run" / "config.yaml").write_text(show(resolve([SIMCLR, *changes])))
    return folder


def _status(verb: str, arguments: Sequence[str]) -> int:
    try:
        return main([verb, *arguments])
    except SystemExit as stop:  # argparse
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("verb", "expected", "arguments"),
    [(verb, *case) for verb, cases in CASES.items() for case in cases],
)
def test_of_a_command(
    verb: str, expected: int, arguments: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [each.format(here=here) for each in arguments.split()]
    photo = (here / "photos" / "dark" / "0.png").read_bytes()
    assert _status(verb, given) == expected, capfd.readouterr()
    err = capfd.readouterr().err
    assert ("error" in err) == bool(expected) or (verb, expected) == ("doctor", FAILED), err
    assert "Traceback" not in err
    assert not list(here.glob("new*"))
    # What is there is not written over.
    assert (here / "taken.npy").read_bytes() == TAKEN
    assert (here / "photos" / "dark" / "0.png").read_bytes() == photo


def test_a_verb_that_is_none() -> None:
    assert main(["trian"]) == TYPED
    assert set(CASES) == set(VERBS)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigError("x"), TYPED),
        (DataError("x"), FAILED),
        (Preempted("x"), RESUMABLE),
        (KeyboardInterrupt(), INTERRUPTED),
    ],
)
def test_of_what_ends_a_verb(
    error: BaseException, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: Any) -> int:
        raise error

    for verb in VERBS:
        monkeypatch.setattr(import_module(f"sslengine.command.{verb}"), "main", raising)
        assert main([verb]) == expected, verb
    monkeypatch.setattr("sslengine.launch.cli.main", raising)
    assert main([SIMCLR]) == expected


# ---- No count is less than it can be; none that is given is taken for one that is not.


TRAIN = "train images --method simclr"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (f"{TRAIN} --size=0", "--size: expected 1 or more"),
        (f"{TRAIN} --workers=-1", "--workers: expected 0 or more"),
        *((f"{TRAIN} --val={share}", f"--val: expected a share, such as 0.1; got {share}")
          for share in ("0", "1", "nan")),
        ("rank run --rows=1", "--rows: expected 2 or more, got 1"),
    ],
)  # fmt: skip
def test_a_count_that_cannot_be(
    command: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == TYPED
    assert told in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["images"]


def test_a_count_that_cannot_be_in_python(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--batch-size: expected 1 or more, got 0"):
        sslengine.train(tmp_path, method="simclr", batch_size=0)
    with pytest.raises(ConfigError, match="--size: expected 1 or more, got 0"):
        sslengine.train(tmp_path, "simclr", size=0)
