from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.contrib.detectron2 import Detectron2Hook, StorageView, get_event_storage
from sslengine.engine import loop
from sslengine.engines.train import train as train_engine
from sslengine.errors import TrainingError
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import Hook
from sslengine.monitor.store import MetricStore
from tests.config.recipes import resolved
from tests.contrib.detectron2_hooks import Diary, HookBase, ValidationLoss, WeightAverage
from tests.engine.runs import Stop, Watch, make_task, same, train, weights
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.engines.runs import PowerCut, make_run

HERE = "tests.contrib.detectron2_hooks"


def _steps(first: int, last: int) -> list[tuple[str, int]]:
    calls = ("before_step", "after_backward", "after_step")
    return [(call, step) for step in range(first, last) for call in calls]


def test_the_calls_and_their_iterations(tmp_path: Path) -> None:
    diary = Diary()
    train(tmp_path, [Detectron2Hook(diary)], **SUPERVISED, **WITH_TEST)  # test phases are ours
    assert diary.notes == [("before_train", 0), *_steps(0, 8), ("after_train", 8)]
    assert diary.trainer.max_iter == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"TRAINER__TRAIN_STEP_NAME": "gradcache_train_step",
         "TRAINER__gradcache_train_step": {"CHUNK_SIZE": 4, "CHUNK_STATISTICS": True}},
        {"OPTIMIZER__accumulate": 2},
        {"LOSS__name": "moco_loss", "LOSS__moco_loss": {"queue_size": 8, "embedding_dim": 8},
         "DATA__TRAIN__COLLATE_FUNCTION": "moco_collator"},
    ],
)  # fmt: skip
def test_with_every_train_step(tmp_path: Path, changes: dict[str, Any]) -> None:
    diary = Diary()
    train(tmp_path, [Detectron2Hook(diary)], **changes)
    assert diary.notes == [("before_train", 0), *_steps(0, 8), ("after_train", 8)]


def test_after_train_when_a_step_raises(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(Stop):
        train(tmp_path, [Watch(stop_after=3), Detectron2Hook(diary)])
    assert diary.notes[-2:] == [("after_backward", 2), ("after_train", 2)]


def test_after_train_is_called_once_even_if_it_raises(tmp_path: Path) -> None:
    class Fails(Diary):
        def after_train(self) -> None:
            super().after_train()
            raise Stop

    diary = Fails()
    with pytest.raises(Stop):
        train(tmp_path, [Detectron2Hook(diary)])
    assert diary.notes.count(("after_train", 8)) == 1


def test_hooks_named_in_the_config_are_wrapped() -> None:
    extra = [{"name": f"{HERE}:ValidationLoss", "period": 3}, "tests.hooks.test_default:Plain"]
    hooks = default_hooks(resolved(HOOKS__EXTRA=extra).config, Path())
    (wrapped,) = [hook for hook in hooks if isinstance(hook, Detectron2Hook)]
    assert wrapped.hook.period == 3
    assert wrapped.name == "ValidationLoss"


def _final(folder: Path) -> dict[str, Any]:
    path = folder / "checkpoints" / "checkpoint.torch"
    state: dict[str, Any] = torch.load(path, weights_only=True)["classy_state_dict"]
    return state


@pytest.mark.slow
def test_an_average_of_weights_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Of a run that never saw a restart it is the same, and by the formula."""
    changes: dict[str, Any] = {"CHECKPOINT__CHECKPOINT_ITER_FREQUENCY": 1}

    def extra(after: int) -> dict[str, Any]:
        average = {"name": f"{HERE}:WeightAverage"}
        return {"HOOKS__EXTRA": [average, {"name": "test_power_cut", "after": after}]}

    train_engine(make_run(tmp_path / "whole", **changes, **extra(99)))
    with pytest.raises(PowerCut):
        train_engine(make_run(tmp_path / "cut", **changes, **extra(6)))
    train_engine(make_run(tmp_path / "cut", **changes, **extra(99)))
    whole, cut = (_final(tmp_path / name) for name in ("whole", "cut"))
    assert same(
        whole["hooks"]["WeightAverage"]["average"], cut["hooks"]["WeightAverage"]["average"]
    )

    steps: list[dict[str, Any]] = []

    class Each(Hook):
        def on_step(self, task: Any) -> None:
            steps.append(weights(task))

    task = make_task(tmp_path / "plain", [Each()])
    expected = weights(task)
    loop.run(task)
    for made in steps:
        expected = {name: (expected[name] + made[name]) / 2 for name in expected}
    for name, value in cut["hooks"]["WeightAverage"]["average"].items():
        if value.is_floating_point():
            assert torch.allclose(value, expected[name], atol=1e-6), name


def test_what_is_put_is_in_the_logged_metrics(tmp_path: Path) -> None:
    train_engine(make_run(tmp_path, HOOKS__EXTRA=[{"name": f"{HERE}:ValidationLoss", "period": 3}]))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # Put after steps 3, 6 and 8; a line of step 1, 2, 4, 6 and 8, and at the start of an epoch.
    metrics = {line["iteration"]: line["validation_loss"]
               for line in lines if "validation_loss" in line}  # fmt: skip
    assert list(metrics) == [4, 6, 8]
    assert len(set(metrics.values())) == 3


def test_it_changes_nothing_of_the_training(tmp_path: Path) -> None:
    hooks = [ValidationLoss(1), WeightAverage()]
    one = train(tmp_path, [])
    two = train(tmp_path, [Detectron2Hook(hook) for hook in hooks])
    assert same(weights(one), weights(two))
    assert hooks[0].at == list(range(8))


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    task = make_task(tmp_path, [hook := Detectron2Hook(HookBase())])
    task.on_start()
    with pytest.raises(AttributeError, match="data_loader .* which training uses"):
        hook.hook.trainer.data_loader  # noqa: B018
    with pytest.raises(AttributeError, match="checkpointer .* available are cfg, iter, max_iter"):
        hook.hook.trainer.checkpointer  # noqa: B018
    task.close()


def test_the_storage_of_the_moment(tmp_path: Path) -> None:
    class Puts(HookBase):
        def after_step(self) -> None:
            get_event_storage().put_scalar("put", self.trainer.iter)

    train(tmp_path, [Detectron2Hook(hook := Puts())])
    assert hook.trainer.storage.latest() == {"put": (7.0, 7)}
    with pytest.raises(TrainingError, match="for hooks"):
        get_event_storage()


class _Step:
    iteration = 0


def _view() -> tuple[StorageView, _Step]:
    step = _Step()
    return StorageView(MetricStore(), lambda: step.iteration), step


def test_scalars_and_their_history() -> None:
    view, step = _view()
    for step.iteration, value in enumerate([5.0, 1.0, 3.0, 11.0]):
        view.put_scalar("loss", torch.tensor(value))
    view.put_scalar("lr", 0.25, smoothing_hint=False)
    step.iteration = 9
    view.put_scalars(a=1, b=2, smoothing_hint=False, cur_iter=3)
    history = view.history("loss")
    assert (history.latest(), history.median(3), history.avg(2), history.global_avg()) == (
        11.0, 3.0, 7.0, 5.0,
    )  # fmt: skip
    assert view.latest() == {"loss": (11.0, 3), "lr": (0.25, 3), "a": (1.0, 9), "b": (2.0, 9)}
    smoothed = view.latest_with_smoothing_hint(window_size=3)
    assert smoothed["loss"] == (3.0, 3)
    assert smoothed["lr"] == (0.25, 3)
    assert set(view.histories()) == {"loss", "lr", "a", "b"}
    with pytest.raises(TrainingError, match="no metric 'nothing'"):
        view.history("nothing")


def test_a_scope_goes_before_names() -> None:
    view, _ = _view()
    with view.name_scope("validation"):
        view.put_scalar("accuracy", 1.0)
    view.put_scalar("accuracy", 2.0)
    assert view.latest() == {"validation/accuracy": (1.0, 0), "accuracy": (2.0, 0)}


def test_the_runs_store_writes_them_and_has_metrics_of_others() -> None:
    store = MetricStore()
    view = StorageView(store, lambda: 0)
    for value in (1.0, 2.0, 9.0):
        view.put_scalar("smooth", torch.tensor(value))
        view.put_scalar("last", value, smoothing_hint=False)
        view.put_scalar("lr", value, smoothing_hint=False)  # the engine has one of that name
        view.put_scalar("AP (large)", value, smoothing_hint=False)
    for step, value in enumerate((3.0, 5.0)):
        store.record(torch.tensor(value), step, 4, 1.0, None)
    store.read()
    assert store.take_scalars() == {
        "smooth": 2.0, "last": 9.0, "hook/lr": 9.0, "AP _large_": 9.0,
    }  # fmt: skip
    assert view.history("lr").values() == [1.0, 2.0, 9.0]
    loss = view.history("loss")
    assert (loss.latest(), loss.avg(2), loss.global_avg(), loss.median(1)) == (5.0, 4.0, 4.0, 5.0)


def test_images_and_histograms_go_to_the_store() -> None:
    store = MetricStore()
    view = StorageView(store, lambda: 0)
    view.put_image("crops", torch.zeros(3, 4, 4))
    view.put_histogram("weights", torch.arange(10.0), bins=5)
    images, histograms = store.take_pictures()
    assert list(images) == ["crops"]
    (histogram,) = histograms.values()
    assert list(histogram.counts) == [2, 2, 2, 2, 2]
