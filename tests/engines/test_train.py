from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sslengine.checkpoint import files
from sslengine.distributed.ranks import rank, world_size
from sslengine.engines.train import make_writers, train
from sslengine.errors import CheckpointError, ConfigError
from sslengine.hooks.events import Hook
from sslengine.launch.rank import run_rank
from sslengine.monitor import history
from sslengine.monitor.store import current
from sslengine.testing.state import flat
from tests.config.recipes import resolved
from tests.engine.test_task import SUPERVISED, SYNC_BN, WITH_TEST
from tests.engines.runs import PowerCut, make_run, screen
from tests.ranks import RankPool
from tests.tail import slow_but


def _lines(folder: Path) -> list[dict[str, Any]]:
    return history.read_nested(folder / "metrics.jsonl")


def _losses(folder: Path) -> list[tuple[int, float]]:
    return [(line["iteration"], line["loss"]) for line in _lines(folder) if line["kind"] == "step"]


def _final(folder: Path) -> dict[str, Any]:
    return files.newest(folder / "checkpoints")[1]["classy_state_dict"]


def _cut(after: int) -> dict[str, Any]:
    return {"HOOKS__EXTRA": [{"name": "test_power_cut", "after": after}]}


NEVER = _cut(99)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a run with these changes that nothing cut; each is trained once."""
    folders: dict[str, Path] = {}

    def get(**changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("whole")
            train(make_run(folders[key], **changes))
        return folders[key]

    return get


@pytest.fixture
def complete(whole: Callable[..., Path], tmp_path: Path) -> Path:
    """The folder of the test, with a copy of a run that is complete."""
    return Path(shutil.copytree(whole(), tmp_path, symlinks=True, dirs_exist_ok=True))


def _assert_same_state(one: dict[str, Any], two: dict[str, Any]) -> None:
    first, second = flat(one), flat(two)
    assert first.keys() == second.keys()
    for key, value in first.items():
        equal = torch.equal(value, second[key]) if torch.is_tensor(value) else value == second[key]
        assert equal, f"{key} differs"


def test_what_a_run_leaves_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sslengine")
    run = make_run(tmp_path / "run", LOG_FREQUENCY=1)
    train(run)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [
        ".lock", "checkpoints", "config.yaml", "environment.json", "metrics.jsonl", "signature.json",
        "spectra.jsonl", "starts.jsonl", "status.json",
    ]  # fmt: skip
    assert [i for i, _ in _losses(tmp_path / "run")] == list(range(1, 9))
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == [
        "checkpoint.torch", "model_final_checkpoint_phase1.json",
        "model_final_checkpoint_phase1.torch", "model_phase0.json", "model_phase0.torch",
    ]  # fmt: skip
    assert (
        yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["config"]["SEED_VALUE"] == 0
    )
    report = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert report["packages"]["torch"]
    text = screen(run)
    assert "1 rank on cpu, fp32, seed 0" in text
    assert "done: 8 steps" in text
    for line in ("1 rank on cpu, fp32, seed 0", "done: 8 steps"):
        assert line in caplog.text
    assert len(text.splitlines()) < 40


def test_vissls_keys_are_in_the_checkpoint(complete: Path) -> None:
    state = files.newest(complete / "checkpoints")[1]
    assert state["type"] == "consolidated"
    assert (state["phase_idx"], state["train_phase_idx"], state["iteration"]) == (1, 1, 8)
    model = state["classy_state_dict"]["base_model"]["model"]
    assert "layer1.0.conv1.weight" in model["trunk"]
    assert "0.clf.0.weight" in model["heads"]


@pytest.mark.parametrize(
    ("workers", "cut_after"),
    [
        *((0, step) for step in (1, 4, 7)),
        (2, 3),
        *(pytest.param(0, step, marks=pytest.mark.slow) for step in (3, 6)),
        *(pytest.param(2, step, marks=pytest.mark.slow) for step in (1, 4, 6, 7)),
    ],
)
def test_a_run_that_was_cut_goes_on_bit_by_bit(
    tmp_path: Path, whole: Callable[..., Path], cut_after: int, workers: int
) -> None:
    """In mid-epoch too: weights, optimizer, random streams, losses and logs."""
    changes: dict[str, Any] = {
        "LOG_FREQUENCY": 1,
        "DATA__NUM_DATALOADER_WORKERS": workers,
        "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1,
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 8, 8], "use_dropout": True, "use_bn": True}]],
    }
    undisturbed = whole(**changes, **NEVER)
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **changes, **_cut(cut_after)))
    again = make_run(tmp_path, **changes, **NEVER)
    train(again)
    if cut_after > 1:
        assert "resumed from" in screen(again)
    assert _losses(tmp_path) == _losses(undisturbed)
    _assert_same_state(_final(tmp_path), _final(undisturbed))


def test_what_the_weights_gave_is_known_after_a_kill_in_the_first_epoch(tmp_path: Path) -> None:
    """LogCollapse compares with RankMe of the first step, which the resumed process did not make."""
    train(make_run(tmp_path / "first", **NEVER))
    changes: dict[str, Any] = {
        "MODEL__WEIGHTS_INIT__PARAMS_FILE": str(tmp_path / "first"), "LOG_FREQUENCY": 1,
        "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1, "HOOKS__COLLAPSE_SIGNS": True,
    }  # fmt: skip
    train(make_run(tmp_path / "whole", **changes, **NEVER))
    with pytest.raises(PowerCut):
        train(make_run(tmp_path / "cut", **changes, **_cut(2)))
    train(make_run(tmp_path / "cut", **changes, **NEVER))
    ends = [
        [value for name, value in flat(_final(tmp_path / each)).items() if "start_rank" in name]
        for each in ("whole", "cut")
    ]
    assert ends[0]
    assert ends[0] == ends[1]
    _assert_same_state(_final(tmp_path / "cut"), _final(tmp_path / "whole"))


class PutFigures(Hook):
    """Smoothed over three steps, though lines are two steps apart."""

    def on_loss_and_meter(self, task: Any) -> None:
        loss = task.last_batch.loss
        task.storage.put_scalar("loss/squared", loss.square(), window=3)
        current().put_scalar("slowest", loss, window=1, reduce="max")
        task.storage.put_image("view", task.last_batch.sample["input"][0])


_TIMES = ("time", "images_per_s", "data_seconds")


def _timeless(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in _TIMES} for line in _lines(folder)]


@pytest.mark.parametrize("cut_after", slow_but([3], [3, 4, 5]))
def test_a_resumed_run_logs_the_same_smoothed_figures(
    tmp_path: Path,
    whole: Callable[..., Path],
    cut_after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = "tests.engines.test_train:PutFigures"
    changes: dict[str, Any] = {"LOG_FREQUENCY": 2, "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1}
    never = {"HOOKS__EXTRA": [put, *NEVER["HOOKS__EXTRA"]]}
    cut = {"HOOKS__EXTRA": [put, *_cut(cut_after)["HOOKS__EXTRA"]]}
    undisturbed = whole(**changes, **never)
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **changes, **cut))
    train(make_run(tmp_path, **changes, **never))
    lines = _timeless(undisturbed)
    assert _timeless(tmp_path) == lines
    losses = {line["iteration"]: line["loss"] for line in lines if line["kind"] == "step"}
    assert [i for i in losses if i % 2 == 0] == [2, 4, 6, 8]
    assert all(line["slowest"] == line["loss"] for line in lines if line["kind"] == "step")
    assert all("loss/squared" in line for line in lines if line["kind"] == "step")
    _assert_same_state(_final(tmp_path), _final(undisturbed))
    for folder in (tmp_path, undisturbed):
        names = {path.name for path in (folder / "images" / "view").iterdir()}
        assert names == {f"{step}.png" for step in (1, 2, 4, 5, 6, 8)}


TESTED_WITHIN: dict[str, Any] = {
    **SUPERVISED,
    **WITH_TEST,
    "LOG_FREQUENCY": 1,
    "TEST_EVERY_NUM_ITERATIONS": 3,
    "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 3,
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 8, 3], "use_dropout": True}]],
}


@pytest.mark.parametrize("cut_after", slow_but([4], [4, 7]))
def test_a_run_with_tests_within_epochs_goes_on_bit_by_bit(
    tmp_path: Path, whole: Callable[..., Path], cut_after: int
) -> None:
    undisturbed = whole(**TESTED_WITHIN, **NEVER)
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **TESTED_WITHIN, **_cut(cut_after)))
    again = make_run(tmp_path, **TESTED_WITHIN, **NEVER)
    train(again)
    assert "resumed from" in screen(again)
    assert _losses(tmp_path) == _losses(undisturbed)
    _assert_same_state(_final(tmp_path), _final(undisturbed))


def test_a_test_within_an_epoch_belongs_to_the_checkpoint_of_its_iteration(tmp_path: Path) -> None:
    train(make_run(tmp_path, **TESTED_WITHIN))
    manifests = {path.stem: json.loads(path.read_text()) for path in
                 (tmp_path / "checkpoints").glob("*.json")}  # fmt: skip
    assert sorted(manifests) == [
        "model_final_checkpoint_phase1", "model_iteration3", "model_iteration6", "model_phase0",
    ]  # fmt: skip
    tests = {line["iteration"]: line["accuracy_list_meter"] for line in _lines(tmp_path)
             if line["split"] == "test"}  # fmt: skip
    assert sorted(tests) == [3, 6, 8]
    for name, iteration in (("model_iteration3", 3), ("model_iteration6", 6),
                            ("model_final_checkpoint_phase1", 8)):  # fmt: skip
        assert manifests[name]["results"]["test"]["accuracy_list_meter"] == tests[iteration]
    assert "test" not in manifests["model_phase0"]["results"]  # no test was made of it


@pytest.mark.parametrize(
    ("before", "after", "cut_after"),
    [
        ({"TEST_EVERY_NUM_ITERATIONS": 3}, {"TEST_EVERY_NUM_EPOCH": 1}, 6),
        pytest.param(
            {"TEST_EVERY_NUM_ITERATIONS": 3}, {"TEST_MODEL": False}, 4, marks=pytest.mark.slow
        ),
        pytest.param({"TEST_EVERY_NUM_EPOCH": 1}, {"TEST_MODEL": False}, 6, marks=pytest.mark.slow),
        ({"TEST_MODEL": False}, {"TEST_EVERY_NUM_ITERATIONS": 3}, 4),
    ],
)
def test_a_run_that_is_tested_at_other_times_goes_on_in_its_place(
    tmp_path: Path, whole: Callable[..., Path], before: dict[str, Any], after: dict[str, Any],
    cut_after: int,
) -> None:  # fmt: skip
    """What is trained does not depend on when it is tested, nor on a change of that."""
    saved = {"CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1, "LOG_FREQUENCY": 1}
    plain = {**SUPERVISED, **WITH_TEST, **saved}
    undisturbed = whole(**{**plain, **after})
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **{**plain, **before}, **_cut(cut_after)))
    train(make_run(tmp_path, **{**plain, **after}, **NEVER))
    assert _losses(tmp_path) == _losses(undisturbed)
    _assert_same_state(_final(tmp_path)["base_model"], _final(undisturbed)["base_model"])


def test_a_trained_run_is_tested_alone(tmp_path: Path) -> None:
    train(make_run(tmp_path, **SUPERVISED, **WITH_TEST))
    before, files = _lines(tmp_path), sorted((tmp_path / "checkpoints").iterdir())
    again = make_run(tmp_path, **SUPERVISED, **WITH_TEST, TEST_ONLY=True)
    train(again)
    assert "a test after 8 train steps" in screen(again)
    assert sorted((tmp_path / "checkpoints").iterdir()) == files
    *kept, test = _lines(tmp_path)
    assert kept == before
    last = next(line for line in reversed(before) if line["split"] == "test")
    assert test["accuracy_list_meter"] == last["accuracy_list_meter"]


def test_a_complete_run_is_not_trained_again(complete: Path) -> None:
    before = (complete / "metrics.jsonl").read_bytes()
    again = make_run(complete)
    train(again)
    assert "this run is complete, 8 steps" in screen(again)
    assert (complete / "metrics.jsonl").read_bytes() == before


def test_existing_checkpoints_are_not_trained_over_without_auto_resume(complete: Path) -> None:
    with pytest.raises(CheckpointError, match="AUTO_RESUME is false"):
        train(make_run(complete, CHECKPOINT__AUTO_RESUME=False))


def test_a_broken_newest_checkpoint_costs_only_its_steps(tmp_path: Path) -> None:
    train(make_run(tmp_path / "whole"))
    train(make_run(tmp_path / "run"))
    newest = (tmp_path / "run" / "checkpoints" / files.POINTER).resolve()
    newest.write_bytes(newest.read_bytes()[:1000])
    train(make_run(tmp_path / "run"))
    _assert_same_state(_final(tmp_path / "run"), _final(tmp_path / "whole"))


def test_a_wrong_config_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^config\.MODEL\.AMP_PARAMS"):
        train(
            make_run(tmp_path / "run", MODEL__AMP_PARAMS={"USE_AMP": True, "AMP_TYPE": "pytorch"})
        )
    assert not (tmp_path / "run").exists()


def test_weights_to_start_from_are_read_once_and_not_on_resume(tmp_path: Path) -> None:
    train(make_run(tmp_path / "first"))
    source = tmp_path / "weights.torch"
    source.write_bytes((tmp_path / "first" / "checkpoints" / files.POINTER).read_bytes())
    start = {"MODEL__WEIGHTS_INIT__PARAMS_FILE": str(source), "OPTIMIZER__num_iterations": 1, "OPTIMIZER__num_epochs": None,
             "OPTIMIZER__param_schedulers__lr__start_value": 0.0}  # fmt: skip
    train(make_run(tmp_path / "second", **start))
    one = _final(tmp_path / "first")["base_model"]["model"]["heads"]
    two = _final(tmp_path / "second")["base_model"]["model"]["heads"]
    assert all(torch.equal(one[name], two[name]) for name in one)
    source.unlink()
    train(make_run(tmp_path / "second", **{**start, "OPTIMIZER__num_iterations": 2}))
    assert _final(tmp_path / "second")["progress"]["iteration"] == 2


def _writers(folder: Path, **changes: Any) -> list[str]:
    writers = make_writers(make_run(folder, **changes), 0)
    for each in writers:
        each.close()
    return [type(each).__name__ for each in writers]


def test_writers_by_name_and_tensorboard_by_vissls_key(tmp_path: Path) -> None:
    default = ["ConsoleWriter", "LogWriter", "JsonLinesWriter", "ImageWriter"]
    board = {"USE_TENSORBOARD": True, "FLUSH_EVERY_N_MIN": 1}
    assert _writers(tmp_path) == default
    assert _writers(tmp_path, HOOKS__TENSORBOARD_SETUP=board) == [*default, "TensorBoardWriter"]
    names = ["json", {"name": "tensorboard"}]
    both = {"HOOKS__WRITERS": names, "HOOKS__TENSORBOARD_SETUP": board}
    assert _writers(tmp_path, **both) == ["JsonLinesWriter", "TensorBoardWriter"]


# ---- several ranks


def _train_on_ranks(folder: Path, changes: dict[str, Any], cut: bool) -> None:
    run = make_run(folder, DISTRIBUTED__NUM_PROC_PER_NODE=world_size(), **SYNC_BN, **changes)
    if cut:
        with pytest.raises(PowerCut):
            train(run)
    else:
        train(run)


def test_two_ranks_that_were_cut_go_on_bit_by_bit(two_ranks: RankPool, tmp_path: Path) -> None:
    base = {"LOG_FREQUENCY": 1, "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1}
    never, soon = {**base, **NEVER}, {**base, **_cut(3)}
    two_ranks.run(_train_on_ranks, tmp_path / "whole", never, False)
    two_ranks.run(_train_on_ranks, tmp_path / "cut", soon, True)
    two_ranks.run(_train_on_ranks, tmp_path / "cut", never, False)
    assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole")
    assert len(_final(tmp_path / "cut")["ranks"]) == 2
    _assert_same_state(_final(tmp_path / "cut"), _final(tmp_path / "whole"))
    assert rank() == 0


@pytest.mark.slow
def test_how_often_ranks_read_their_losses_changes_no_metric(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    base: dict[str, Any] = {
        "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 2,
        "HOOKS__EXTRA": ["tests.engines.test_train:PutFigures"],
    }
    found = []
    for frequency in (1, 3):
        folder, changes = tmp_path / str(frequency), {**base, "LOG_FREQUENCY": frequency}
        two_ranks.run(_train_on_ranks, folder, changes, False)
        steps = (line for line in _lines(folder) if line["kind"] == "step")
        found.append({line["iteration"]: (line["loss"], line["slowest"]) for line in steps})
    every, some = found
    assert any(slowest > loss for loss, slowest in every.values())  # the larger, and the mean
    assert all(slowest >= loss for loss, slowest in every.values())
    assert some == {iteration: every[iteration] for iteration in some}
    _assert_same_state(_final(tmp_path / "1"), _final(tmp_path / "3"))


def test_what_changed_is_told_and_another_model_refused(complete: Path) -> None:
    longer = make_run(complete, OPTIMIZER__num_epochs=3, LOG_FREQUENCY=2)
    train(longer)
    assert "changed since the last start:" in screen(longer)
    assert "config.OPTIMIZER.num_epochs: 2 -> 3" in screen(longer)
    other: dict[str, Any] = {
        "OPTIMIZER__num_epochs": 4,
        "LOSS__simclr_info_nce_loss__temperature": 0.7,
    }
    with pytest.raises(ConfigError) as error:
        train(make_run(complete, **other))
    text = str(error.value)
    assert "config.LOSS.simclr_info_nce_loss.temperature: " in text
    assert "-> 0.7" in text
    assert "num_epochs" not in text
    train(make_run(complete, **other, CHECKPOINT__ALLOW_CHANGED_CONFIG=True))
    assert _final(complete)["progress"]["iteration"] == 16


RECORDED: dict[str, Any] = {**SUPERVISED, **WITH_TEST, "LOG_FREQUENCY": 1}


class CutAfterTest(Hook):
    """Ends the run when its first test phase is over: its record is written, nothing is saved."""

    def on_phase_start(self, task: Any) -> None:
        if task.train and task.iteration == 4:
            raise PowerCut


def test_a_kill_after_a_test_phase_leaves_its_record_once(
    tmp_path: Path, whole: Callable[..., Path]
) -> None:
    cut = {"HOOKS__EXTRA": ["tests.engines.test_train:CutAfterTest"]}
    with pytest.raises(PowerCut):
        train(make_run(tmp_path, **RECORDED, **cut))
    assert [line["split"] for line in _lines(tmp_path) if line["kind"] == "phase"] == [
        "train", "test",
    ]  # fmt: skip
    train(make_run(tmp_path, **RECORDED))
    phases = [(r["split"], r["iteration"]) for r in history.read(tmp_path, "phase", split=None)]
    assert phases == [("train", 4), ("test", 4), ("train", 8), ("test", 8)]
    assert _timeless(tmp_path) == _timeless(whole(**RECORDED))


def test_records_are_on_the_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the metrics of all steps before the checkpoint are there."""
    kept: list[bytes] = []
    disk: dict[int, int] = {}  # bytes of each file that the disk is sure to have
    fsync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        fsync(file)
        disk[os.fstat(file).st_ino] = os.fstat(file).st_size

    def named(source: Any, target: Any) -> None:
        replace(source, target)
        if str(target).endswith("model_phase0.torch"):
            path = tmp_path / "metrics.jsonl"
            kept.append(path.read_bytes()[: disk.get(path.stat().st_ino, 0)])

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    with pytest.raises(PowerCut):
        train(
            make_run(tmp_path, **RECORDED, HOOKS__EXTRA=["tests.engines.test_train:CutAfterTest"])
        )
    lines = [json.loads(line) for line in kept[0].splitlines()]
    assert [line["iteration"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4]
    assert [line["split"] for line in lines if line["kind"] == "phase"] == ["train"]


def test_a_run_that_only_tests_drops_no_line_of_the_training(tmp_path: Path) -> None:
    train(make_run(tmp_path, **RECORDED))
    before, read = (tmp_path / "metrics.jsonl").read_bytes(), len(_lines(tmp_path))
    again = {**RECORDED, "TEST_ONLY": True, "CHECKPOINT__LATEST_CHECKPOINT_RESUME_FILE_NUM": 2}
    train(make_run(tmp_path, **again))
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(before)
    assert len(_lines(tmp_path)) == read  # the test of that checkpoint is there for the second time


def _killed_on_ranks(folder: Path, whole: Path) -> Any:
    train(make_run(whole, **RANKS))
    with suppress(PowerCut):
        train(make_run(folder, **RANKS, **_cut(6)))
    train(make_run(folder, **RANKS))
    return (_timeless(whole), _timeless(folder)) if rank() == 0 else (None, None)


RANKS = {**RECORDED, "CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1,
         "DISTRIBUTED__NUM_PROC_PER_NODE": 2, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2,
         "DATA__TEST": {**WITH_TEST["DATA__TEST"], "BATCHSIZE_PER_REPLICA": 2}}  # fmt: skip


def test_two_ranks_leave_each_line_once(two_ranks: RankPool, tmp_path: Path) -> None:
    (want, got), _ = two_ranks.run(_killed_on_ranks, tmp_path / "killed", tmp_path / "whole")
    assert got == want
    assert len(want) == 8 + 4


EVERY_FILE: dict[str, Any] = {
    "HOOKS__WRITERS": ["json", "csv", "images", "log", "tensorboard"],
    "HOOKS__EXTRA": ["tests.engines.test_train:PutsAnImage"],
    "PROFILING__MEMORY_PROFILING__TRACK_BY_LAYER_MEMORY": True,
    "CHECKPOINT__OVERWRITE_EXISTING": True,
}


class PutsAnImage(Hook):
    def on_step(self, task: Any) -> None:
        task.storage.put_image("first", task.last_batch.sample["input"][0])


def test_all_that_a_run_writes_is_moved_aside(tmp_path: Path) -> None:
    """Through the real command: whatever a run leaves, and only that."""
    decided = resolved(CHECKPOINT__DIR=str(tmp_path / "run"), **SUPERVISED, **EVERY_FILE)
    folder = tmp_path / "run"
    run_rank(decided, join=False)
    (folder / "notes.txt").write_text("mine")
    (folder / "evaluation.json").write_text("{}")
    (folder / "log_rank1.txt").write_text("of a second rank")
    wrote = sorted(path.name for path in folder.iterdir())
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"config.yaml", "environment.json", "log.txt", "metrics.csv", "metrics.jsonl",
            "images", "tb_logs", "checkpoints"} <= set(wrote)  # fmt: skip
    config = resolved(CHECKPOINT__DIR=str(folder), SEED_VALUE=7, **SUPERVISED, **EVERY_FILE)
    run_rank(config, join=False)
    earlier = folder / "earlier" / "1"
    moved = sorted(path.name for path in earlier.iterdir())
    assert moved == [name for name in wrote if name not in (".lock", "notes.txt")]
    for name in ("config.yaml", "environment.json", "metrics.jsonl", "evaluation.json"):
        assert (earlier / name).read_bytes() == before[name]
    assert (earlier / "log.txt").read_bytes().startswith(before["log.txt"])
    assert "SEED_VALUE: 7" in (folder / "config.yaml").read_text()
    assert "saved model_phase0.torch" in (folder / "log.txt").read_text()
    assert (folder / "notes.txt").read_text() == "mine"
