from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.distributed.data_parallel import broadcast_all
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.task import ClassyTask, SelfSupervisionTask
from sslengine.errors import NonFiniteLossError, SSLEngineError
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import Hook
from tests.config.recipes import RECIPE, resolved
from tests.engine.runs import Record, Watch, make_task, same, train, weights
from tests.methods.resuming import assert_goes_on_bit_by_bit
from tests.ranks import RankPool

SUPERVISED: dict[str, Any] = {
    "LOSS": {"name": "cross_entropy_multiple_output_single_target"},
    "DATA__TRAIN__LABEL_SOURCES": ["synthetic"],
    "DATA__TRAIN__RANDOM_SYNTHETIC_LABELS": 3,
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
    "MODEL__TRUNK__RESNETS": {
        "DEPTH": 18,
        "WIDTH_MULTIPLIER": 0.0625,
        "STEM": "small",
        "NORM": "GroupNorm",
        "GROUPNORM_GROUPS": 2,
    },
    "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 3]}]],
}
WITH_TEST: dict[str, Any] = {
    "TEST_MODEL": True,
    "METERS": {"names": ["accuracy_list_meter"]},
    "DATA__TEST": {
        "DATA_SOURCES": ["synthetic"],
        "LABEL_SOURCES": ["synthetic"],
        "RANDOM_SYNTHETIC_LABELS": 3,
        "RANDOM_SYNTHETIC_IMAGES": True,
        "DEFAULT_GRAY_IMG_SIZE": 12,
        "DATA_LIMIT": 7,
        "BATCHSIZE_PER_REPLICA": 4,
        "TRANSFORMS": [{"name": "ToTensor"}],
    },
}


def test_events_of_a_run_in_their_order(tmp_path: Path) -> None:
    record = Record()
    train(tmp_path, [record], **SUPERVISED, **WITH_TEST, OPTIMIZER__num_epochs=1)
    step = ["on_step_start", "on_forward", "on_loss_and_meter", "on_backward", "on_update"]
    expected = ["train on_start 0", "train on_phase_start 0"]
    for iteration in range(4):
        expected += [f"train {event} {iteration}" for event in step]
        expected += [f"train on_step {iteration + 1}"]
    expected += ["train on_phase_end 4", "test on_phase_start 4"]
    test_step = ["on_step_start", "on_forward", "on_loss_and_meter", "on_step"]
    expected += [f"test {event} 4" for event in test_step] * 2
    expected += ["test on_phase_end 4", "test on_end 4"]
    assert record.events == expected


def test_one_seed_decides_all_and_nothing_else_does(tmp_path: Path) -> None:
    first, again, other = Watch(), Watch(), Watch()
    one = train(tmp_path, [first])
    torch.manual_seed(12345)  # what came before in the process does not matter
    two = train(tmp_path, [again], DATA__NUM_DATALOADER_WORKERS=2)
    three = train(tmp_path, [other], SEED_VALUE=1)
    assert first.losses == again.losses
    assert first.samples == again.samples
    assert same(weights(one), weights(two))
    assert first.samples != other.samples
    assert not same(weights(one), weights(three))


TESTED_OFTEN = {
    "TEST_MODEL": True, "TEST_EVERY_NUM_ITERATIONS": 3, "DATA__TRAIN__TRAIN_PHASES_PER_EPOCH": 2,
    "OPTIMIZER__num_epochs": 3, "DATA__TEST": {**RECIPE["DATA"]["TRAIN"], "DATA_LIMIT": 4},
}  # fmt: skip


@pytest.mark.parametrize("changes", [{"OPTIMIZER__num_epochs": 3}, TESTED_OFTEN])
def test_the_batches_that_follow_are_announced(changes: dict[str, Any], tmp_path: Path) -> None:
    """So that workers load them while the last of a phase are used, or in a test phase."""
    task = make_task(tmp_path, [], **changes)
    feed, asked, announced = task.train_feed, [], []
    batches, then = feed.batches, feed.then
    feed.batches = lambda *window: asked.append(window) or batches(*window)
    feed.then = lambda *window: announced.append(window) or then(*window)
    loop.run(task)
    assert len(asked) > 2
    assert announced == asked[1:]


def test_resumed_where_batches_of_the_next_epoch_are_loaded(tmp_path: Path) -> None:
    """With the last step of an epoch, and the first, behind it; and a pass between two."""

    class LooksAtAnotherEpoch(Hook):
        def on_phase_end(self, task: Any) -> None:
            next(iter(task.train_feed.batches(7)))

    losses = []
    for hooks in ([], [LooksAtAnotherEpoch()]):
        watch = Watch()
        train(tmp_path, [watch, *hooks], DATA__NUM_DATALOADER_WORKERS=1)
        losses.append(watch.losses)
    assert losses[0] == losses[1]
    for after in (4, 5):
        assert_goes_on_bit_by_bit(tmp_path / str(after), after, DATA__NUM_DATALOADER_WORKERS=1)


class Forbidden(Exception):
    pass


class NoWaiting(Hook):
    """While a step runs, reading a value back to the host raises."""

    NAMES = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")

    def __init__(self) -> None:
        self.saved = {name: getattr(Tensor, name) for name in self.NAMES}
        self.steps = 0

    def forbid(self) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise Forbidden("a train step made the host wait for the device")

        for name in self.NAMES:
            setattr(Tensor, name, refuse)

    def allow(self) -> None:
        for name, method in self.saved.items():
            setattr(Tensor, name, method)


@pytest.mark.parametrize("changes", [{}, {**SUPERVISED, **WITH_TEST, "TEST_EVERY_NUM_EPOCH": 9}])
def test_a_train_step_never_waits_for_the_device(tmp_path: Path, changes: dict[str, Any]) -> None:
    guard = NoWaiting()
    task = SelfSupervisionTask(
        resolved(LOG_FREQUENCY=1000, **changes).config, tmp_path, torch.device("cpu")
    )
    task.prepare()
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    task.step()  # the first step is logged at once, so that a person sees something
    batches = [task.state.next_batch() for _ in range(2)]  # reading data is the host's own business
    task.state.reading.batches = iter(batches)
    guard.forbid()
    try:
        for _ in batches:
            task.step()
    finally:
        guard.allow()
    assert task.iteration == 3
    task.close()


def test_a_loss_that_is_not_finite_stops_the_run_by_name(tmp_path: Path) -> None:
    class Poison(Hook):
        def on_forward(self, task: Any) -> None:
            if task.iteration == 5:
                task.last_batch.model_output = task.last_batch.model_output * math.nan

    class Samples(Hook):
        def on_step(self, task: Any) -> None:
            if task.iteration == 6:
                self.of_the_bad_step = sorted(set(task.last_batch.indices.tolist()))

    config = resolved(LOG_FREQUENCY=100).config
    samples = Samples()
    task = SelfSupervisionTask(
        config,
        tmp_path,
        torch.device("cpu"),
        hooks=[Poison(), samples, *default_hooks(config, tmp_path)],
    )
    task.prepare()
    with pytest.raises(NonFiniteLossError) as error:
        loop.run(task)
    text = str(error.value)
    assert "the loss of iteration 6 is not finite: loss nan" in text
    names = ", ".join(map(task.name_sample, samples.of_the_bad_step))  # four
    assert f"Its images, of this rank: {names}." in text
    # The first epoch's checkpoint is there; none was written after the bad step.
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "checkpoint.torch",
        "model_phase0.json",
        "model_phase0.torch",
    ]


def test_accumulated_batches_equal_the_big_batch(tmp_path: Path) -> None:
    """No batch norm, no contrast between samples: then the groups must not show."""
    big = train(
        tmp_path,
        [],
        **SUPERVISED,
        DATA__TRAIN__BATCHSIZE_PER_REPLICA=6,
        DATA__TRAIN__DROP_LAST=False,
    )
    small = train(
        tmp_path,
        [],
        **SUPERVISED,
        DATA__TRAIN__BATCHSIZE_PER_REPLICA=3,
        DATA__TRAIN__DROP_LAST=False,
        OPTIMIZER__accumulate=2,
    )
    # 16 samples: groups of 3+3, 3+3 and the incomplete 3+1.
    assert big.progress.num_updates == small.progress.num_updates == 6
    assert small.iteration == 12
    for name, value in weights(big).items():
        torch.testing.assert_close(value, weights(small)[name], rtol=1e-4, atol=1e-6)


def test_the_state_holds_everything_and_a_stranger_is_refused(tmp_path: Path) -> None:
    task = make_task(tmp_path, [])
    state = task.get_classy_state(deep_copy=True)
    for key in state:
        broken = {name: value for name, value in state.items() if name != key}
        with pytest.raises(SSLEngineError, match=f"missing {key};"):
            task.set_classy_state(broken)
    with pytest.raises(SSLEngineError, match="not known here optimiser.*Did you mean 'optimizer'"):
        task.set_classy_state({**state, "optimiser": {}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATA__TRAIN__DATA_LIMIT": 12}, "training samples: 16 -> 12"),
        ({"DATA__TRAIN__BATCHSIZE_PER_REPLICA": 8}, "steps per epoch: 4 -> 2"),
        ({"SEED_VALUE": 9}, "SEED_VALUE: 0 -> 9"),
        ({"MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 4]}]]}, "made by another model"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    state = make_task(tmp_path, []).get_classy_state(deep_copy=True)
    with pytest.raises(SSLEngineError, match=message):
        make_task(tmp_path, [], **changes).set_classy_state(state)


def test_names_that_vissls_hooks_read(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Theirs(Hook):
        def on_loss_and_meter(self, task: Any) -> None:
            seen.update(
                config=task.config["METERS"]["enable_training_meter"],
                batch=task.last_batch.sample["data_idx"],
                output=task.last_batch.model_output,
                target=task.last_batch.target,
                loss=task.last_batch.loss,
                model=task.base_model.trunk,
                train=task.train,
                phases=(task.phase_idx, task.train_phase_idx, task.iteration, task.num_updates),
                local=task.local_iteration_num,
                perf=task.perf_stats.report_str(),
                folder=task.checkpoint_folder,
            )

        def on_step(self, task: Any) -> None:
            seen["losses"] = list(task.losses)

    train(tmp_path, [Theirs()])
    assert seen["config"] is True
    assert seen["phases"] == (1, 1, 7, 7)
    assert seen["local"] == 3
    assert len(seen["losses"]) == 4
    assert seen["losses"][-1] == pytest.approx(4 * seen["loss"].item())
    assert seen["folder"].endswith("checkpoints")


# ---- several ranks


def _run_on_ranks(folder: Path, changes: dict[str, Any]) -> tuple[list[float], dict[str, Any], Any]:
    changes = dict(changes)
    changes["DISTRIBUTED__NUM_PROC_PER_NODE"] = world_size()
    watch = Watch()
    task = train(folder / str(rank()), [watch], **changes)
    return watch.losses, weights(task), task.phase_results


SYNC_BN = {"MODEL__SYNC_BN_CONFIG": {"CONVERT_BN_TO_SYNC_BN": True, "GROUP_SIZE": 0}}


@pytest.mark.parametrize("by_hand", [False, True])
def test_two_ranks_equal_one_with_the_same_global_batch(
    two_ranks: RankPool, tmp_path: Path, by_hand: bool
) -> None:
    watch = Watch()
    # Two steps: a wrong gradient shows in the second loss. Each further step multiplies the
    # rounding of sums in another order, which batch norm over eight images magnifies.
    epoch = {"OPTIMIZER__num_epochs": 1}
    alone = train(tmp_path, [watch], **epoch, DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    assert len(watch.losses) == 2
    changes = {
        **epoch,
        **SYNC_BN,
        "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 4,
        "DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": by_hand,
    }
    first, second = two_ranks.run(_run_on_ranks, tmp_path, changes)
    assert first[0] == second[0]
    assert same(first[1], second[1])
    assert first[0] == pytest.approx(watch.losses, rel=1e-4)
    for name, value in weights(alone).items():
        torch.testing.assert_close(first[1][name], value, rtol=1e-3, atol=1e-5)


def test_accumulation_over_ranks_reduces_once_per_group(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    big = train(tmp_path, [], **SUPERVISED, DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    changes = {**SUPERVISED, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2, "OPTIMIZER__accumulate": 2}
    for _, got, _ in two_ranks.run(_run_on_ranks, tmp_path, changes):
        for name, value in weights(big).items():
            torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-6)


def test_test_metrics_are_exact_over_ranks(two_ranks: RankPool, tmp_path: Path) -> None:
    """7 test samples on 2 ranks: none lost, none counted twice."""
    changes = {**SUPERVISED, **WITH_TEST, "OPTIMIZER__num_epochs": 1}
    alone = train(tmp_path, [], **changes, DATA__TRAIN__BATCHSIZE_PER_REPLICA=8)
    results = two_ranks.run(
        _run_on_ranks, tmp_path, {**changes, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 4}
    )
    for _, _, result in results:
        assert result["accuracy_list_meter"] == alone.phase_results["accuracy_list_meter"]
        assert result["loss"] == pytest.approx(alone.phase_results["loss"], rel=1e-5)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("mode", ["disabled", "before_eval", True])
def test_modes_of_broadcasting_buffers(
    two_ranks: RankPool, tmp_path: Path, mode: object, by_hand: bool
) -> None:
    """Batch norm statistics of two ranks, without SyncBN, after a test phase."""
    test = {key: value for key, value in WITH_TEST.items() if key != "METERS"}
    test["DATA__TEST"] = {
        **test["DATA__TEST"],
        "COLLATE_FUNCTION": "simclr_collator",
        "DATA_LIMIT": 8,
        "TRANSFORMS": [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
    }
    changes = {
        **test,
        "OPTIMIZER__num_epochs": 1,
        "DISTRIBUTED__BROADCAST_BUFFERS": mode,
        "DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": by_hand,
    }
    first, second = two_ranks.run(_run_on_ranks, tmp_path, changes)
    statistics = [name for name in first[1] if "running_mean" in name]
    assert same({n: first[1][n] for n in statistics}, {n: second[1][n] for n in statistics}) is (
        mode != "disabled"
    )


def _judged_on_ranks(folder: Path, by_hand: bool) -> tuple[torch.Tensor, torch.Tensor]:
    changes = {"OPTIMIZER__num_epochs": 1, "DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": by_hand}
    changes["DISTRIBUTED__NUM_PROC_PER_NODE"] = world_size()
    task = train(folder / str(rank()), [], **changes)
    before = task.compute_features(8).features
    broadcast_all(task.base_model.buffers())
    return before, task.compute_features(8).features


@pytest.mark.parametrize("by_hand", [False, True])
def test_features_of_a_rank_are_those_of_the_checkpoint(
    two_ranks: RankPool, tmp_path: Path, by_hand: bool
) -> None:
    """By rank 0's statistics: the last step changed each rank's own."""
    for before, after in two_ranks.run(_judged_on_ranks, tmp_path, by_hand):
        assert torch.equal(before, after)


class FailsTwice(Hook):
    """Raises in a step, and again when it is told of that."""

    def on_step(self, task: Any) -> None:
        raise StopIteration("the first error")  # which loops like to swallow

    def on_exception(self, task: Any) -> None:
        raise RuntimeError("the second error")


def test_every_hook_hears_of_an_error_and_the_first_one_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = Record()
    task = make_task(tmp_path, [FailsTwice(), record], DATA__NUM_DATALOADER_WORKERS=1)
    with pytest.raises(StopIteration, match="the first error"):
        loop.run(task)
    assert record.events[-1] == "train on_exception 1"
    assert "on_end" not in str(record.events)
    assert task.train_feed._loader._loader is None  # its workers have ended
    assert "the second error" in caplog.text


# ---- tests by iteration


class Begun(Hook):
    """Train phase and step at which each phase of training begins."""

    def __init__(self) -> None:
        self.at: list[tuple[int, int]] = []

    def on_phase_start(self, task: Any) -> None:
        if task.train:
            self.at.append((task.train_phase_idx, task.progress.step))


def test_a_test_within_an_epoch_changes_nothing_that_is_trained(tmp_path: Path) -> None:
    """Dropout's draws, accumulated groups, schedules by epoch: as in a run that is not tested."""
    changes: dict[str, Any] = {
        **SUPERVISED,
        **WITH_TEST,
        "DATA__TRAIN__DATA_LIMIT": 28,
        "OPTIMIZER__accumulate": 2,
        "OPTIMIZER__param_schedulers__lr__update_interval": "epoch",
        "MODEL__HEAD__PARAMS": [["mlp", {"dims": [32, 8, 3], "use_dropout": True}]],
    }
    plain, tested, record, begun = Watch(), Watch(), Record(), Begun()
    one = train(tmp_path, [plain], **changes)
    two = train(tmp_path, [tested, record, begun], **changes, TEST_EVERY_NUM_ITERATIONS=3)
    assert tested.losses == plain.losses
    assert tested.samples == plain.samples
    assert same(weights(one), weights(two))
    tests = [event for event in record.events if event.startswith("test on_phase_end")]
    # After 3, 6, 9 and 12 steps, or at the end of the group of two that the step begins.
    assert tests == [f"test on_phase_end {made}" for made in (4, 6, 9, 13, 14)]
    assert [phase.train_index for phase in two.phases] == [0] * 5 + [1] * 6
    # What a hook does at the start of an epoch it does once: after a test the phase continues.
    assert begun.at == [(0, 0), (0, 4), (0, 6), (1, 0), (1, 2), (1, 6)]


def test_what_the_page_says_moves_from_vissls_hooks_is_of_the_task(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "vissl_differences.md").read_text()
    (kept, changed) = re.findall(r"^\| hooks \| (.*?) \| (.*?) \|$", page, re.MULTILINE)[0]
    task = make_task(tmp_path, [])
    names = re.findall(r"`(\w+)`", kept)
    assert len(names) == 18
    assert [each for each in names if not hasattr(task, each)] == []
    absent = ("datasets", "dataloaders", "max_iteration", "additional_log_data", "ema_model")
    assert all(f"`{each}`" in changed and not hasattr(task, each) for each in absent)
    here = ("train_feed", "test_feed", "phases", "storage", "phase_results", "perf", "precision")
    assert all(hasattr(task, each) for each in here)


# ---- as Classy Vision names it


def test_the_task_is_a_classy_task_and_nothing_else() -> None:
    assert SelfSupervisionTask.__bases__ == (ClassyTask,)
