from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.hooks.detectron2_storage import Metrics, StorageView


class _Step:
    iteration = 0


def _view() -> tuple[StorageView, _Step]:
    step = _Step()
    return StorageView(Metrics(), lambda: step.iteration), step


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
    with pytest.raises(KeyError):
        view.history("nothing")


def test_a_scope_goes_before_names() -> None:
    view, _ = _view()
    with view.name_scope("validation"):
        view.put_scalar("loss", 1.0)
    view.put_scalar("loss", 2.0)
    assert view.to_be_written() == {"validation/loss": 1.0, "loss": 2.0}


def test_images_and_histograms_go_to_the_store() -> None:
    got: list[tuple[str, Any]] = []

    class Store(Metrics):
        def put_image(self, name: str, array: Any) -> None:
            got.append((name, array.shape))

        def put_histogram(self, name: str, values: Any) -> None:
            got.append((name, values.shape))

    view = StorageView(Store(), lambda: 0)
    view.put_image("crops", torch.zeros(3, 4, 4))
    view.put_histogram("weights", torch.zeros(10), bins=5)
    assert got == [("crops", (3, 4, 4)), ("weights", (10,))]
    plain, _ = _view()
    plain.put_image("crops", torch.zeros(3, 4, 4))
    plain.put_histogram("weights", torch.zeros(10))
    assert plain.to_be_written() == {}
