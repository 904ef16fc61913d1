from __future__ import annotations

import pytest
import torch

from sslengine.contrib.detectron2_storage import StorageView
from sslengine.errors import TrainingError
from sslengine.monitor.store import MetricStore


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
    store._feed({"loss": [3.0, 5.0]})
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
    images, histograms = store.take_pictures().read()
    assert list(images) == ["crops"]
    (histogram,) = histograms.values()
    assert list(histogram.counts) == [2, 2, 2, 2, 2]
