"""Judging on another machine than the one that trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import sslengine
from sslengine.command import judge
from sslengine.command.front import main
from sslengine.command.judging_machine import of_machine
from sslengine.command.machine import Machine
from sslengine.config.compose import overrides
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import gpu_count
from tests.command.photos import write_photos

ON_TWO_CORES = Machine(gpus=0, memory=0, cores=2, name="")
ON_FOUR_GPUS = Machine(gpus=4, memory=80 << 30, cores=32, name="H100")
ON_APPLES = Machine(gpus=0, memory=16 << 30, cores=8, name="", apple=True)


def _found(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, arguments: str = "", **config: Any
) -> tuple[dict[str, str], str]:
    monkeypatch.setattr("sslengine.command.judging_machine.look", lambda device, gpus: machine)
    given = judge.make_parser().parse_args(["a_run", *arguments.split()])
    keys = overrides({key.replace("__", "."): value for key, value in config.items()})
    made, note = of_machine(given, resolve(["config=quickstart/simclr", *keys]).config)
    pairs = (each.removeprefix("config.").split("=") for each in made)
    return {key.split(".")[1]: value for key, value in pairs}, note


def _of_eight(**more: Any) -> dict[str, Any]:
    return {"MACHINE__DEVICE": "gpu", "DISTRIBUTED__NUM_PROC_PER_NODE": 8, **more}


@pytest.mark.parametrize(
    ("machine", "device", "ranks", "workers"),
    [(ON_TWO_CORES, "cpu", 1, 1), (ON_FOUR_GPUS, "gpu", 4, 8), (ON_APPLES, "mps", 1, 7)],
)
def test_a_run_of_more_gpus_takes_what_there_is_and_says_so(
    machine: Machine, device: str, ranks: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, note = _found(monkeypatch, machine, **_of_eight())
    assert made == {
        "DEVICE": device, "NUM_PROC_PER_NODE": str(ranks), "NUM_NODES": "1",
        "NUM_DATALOADER_WORKERS": str(workers),
    }  # fmt: skip
    assert note.startswith(f"computed on {machine}: the run has MACHINE.DEVICE=gpu and DISTRIB")
    made, _ = _found(monkeypatch, machine, "--workers 3", **_of_eight())
    assert made["NUM_DATALOADER_WORKERS"] == "3"


def test_a_machine_that_has_all_of_it_computes_as_the_run_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = _of_eight(DISTRIBUTED__NUM_PROC_PER_NODE=4)
    assert _found(monkeypatch, ON_FOUR_GPUS, **keys) == ({}, "")
    unseen: Any = None  # a run on a CPU runs anywhere: the machine is not asked for GPUs
    assert _found(monkeypatch, unseen, MACHINE__DEVICE="cpu") == ({}, "")
    assert _found(monkeypatch, unseen, MACHINE__DEVICE="auto") == ({}, "")
    assert _found(monkeypatch, ON_APPLES, MACHINE__DEVICE="mps") == ({}, "")
    made, _ = _found(monkeypatch, ON_TWO_CORES, MACHINE__DEVICE="mps")
    assert made["DEVICE"] == "cpu"


def test_what_was_asked_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    made, note = _found(monkeypatch, ON_TWO_CORES, "--device cpu", **_of_eight())
    assert made == {"DEVICE": "cpu", "NUM_PROC_PER_NODE": "1", "NUM_NODES": "1"}
    assert not note
    said = "--set DISTRIBUTED.NUM_PROC_PER_NODE=2 --workers 0"
    made, note = _found(monkeypatch, ON_TWO_CORES, said, **_of_eight())
    assert (made, note) == ({"NUM_DATALOADER_WORKERS": "0"}, "")
    # A job of SLURM, or a process of torchrun, has its place.
    assert _found(monkeypatch, ON_TWO_CORES, **_of_eight(SLURM__USE_SLURM=True)) == ({}, "")
    monkeypatch.setenv("RANK", "0")
    assert _found(monkeypatch, ON_TWO_CORES, **_of_eight()) == ({}, "")


def _scores(judged: dict[str, Any]) -> list[Any]:
    return [(each["features"], each["knn"], each["linear"]) for each in judged["scores"]]


@pytest.mark.slow
@pytest.mark.skipif(gpu_count() > 0, reason="for a machine without GPUs")
def test_a_run_of_eight_gpus_is_judged_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_photos(tmp_path / "photos")
    run = sslengine.fit(
        "simclr", data=photos, model="resnet10t", epochs=1, size=32, workers=0, device="cpu",
        out=tmp_path / "run",
    ).folder  # type: ignore[call-overload]  # fmt: skip
    capsys.readouterr()
    assert main(["judge", str(run), "--json"]) == 0
    scores = _scores(json.loads(capsys.readouterr().out))
    elsewhere = shutil.copytree(run, tmp_path / "elsewhere")
    (elsewhere / "evaluation.json").unlink()
    shutil.rmtree(elsewhere / "features")
    config = (elsewhere / "config.yaml").read_text()
    for own, cluster in (("DEVICE: cpu", "DEVICE: gpu"), ("PER_NODE: 1", "PER_NODE: 8")):
        assert own in config
        config = config.replace(own, cluster)
    (elsewhere / "config.yaml").write_text(config)
    assert main(["judge", str(elsewhere), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert _scores(judged) == scores
    assert any("the run has MACHINE.DEVICE=gpu" in note for note in judged["notes"])
    assert main(["judge", str(elsewhere), "--device=gpu"]) == 2
    assert "--device gpu: torch finds no GPU" in capsys.readouterr().err
