"""Run hooks written for detectron2's trainer unchanged.

    before_train      on_start             after_train    on_end, or on_exception: always once
    before_step       on_step_start        after_step     on_step         only in train steps
    after_backward    on_backward

`self.trainer` has iter, start_iter, max_iter, storage, model, optimizer and cfg. As in
detectron2, `iter` counts from 0, is the same in all calls of a step, and is max_iter in
after_train of a complete run. The state is in checkpoints and is loaded before before_train.

`self.trainer.storage`, and `get_event_storage()` while a hook is called, has put_scalar(s),
put_image, put_histogram, history, histories, latest, latest_with_smoothing_hint, iter and
name_scope, on top of `task.storage`. Metrics go to the run's store, which writes them at
LOG_FREQUENCY. A hook can read its own values at once, and other metrics once the store has read
them.
"""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from sslengine.errors import TrainingError, listing
from sslengine.hooks.events import Hook, Task
from sslengine.monitor.store import MetricStore
from sslengine.registry import register_hook_adapter

CALLS = ("before_train", "after_train", "before_step", "after_backward", "after_step")
NAMES = ("iter", "start_iter", "max_iter", "storage", "model", "optimizer", "cfg")
WINDOW = 20  # of values with a smoothing hint
KEPT = 100_000  # values per name


class MetricHistory:
    """A metric's history with detectron2's method names."""

    def __init__(self, values: Callable[[], list[float]], mean: Callable[[], float]) -> None:
        self._values, self._mean = values, mean

    def values(self) -> list[float]:
        return self._values()

    def latest(self) -> float:
        return self._values()[-1]

    def median(self, window_size: int) -> float:
        return statistics.median(self._values()[-window_size:])

    def avg(self, window_size: int) -> float:
        return statistics.fmean(self._values()[-window_size:])

    def global_avg(self) -> float:
        return self._mean()


class PutValues:
    """A hook's values of one name. Tensors are read on request, so no step synchronises."""

    def __init__(self) -> None:
        self.smoothed = True
        self.at = 0  # the iteration of the last value
        self._raw: deque[Any] = deque(maxlen=KEPT)
        self._sum, self._summed, self._unread = 0.0, 0, 0

    def add(self, value: Any) -> None:
        self._raw.append(value)
        self._unread = min(self._unread + 1, KEPT)

    def values(self) -> list[float]:
        for place in range(len(self._raw) - self._unread, len(self._raw)):
            self._raw[place] = float(self._raw[place])
            self._sum += self._raw[place]
        self._summed, self._unread = self._summed + self._unread, 0
        return list(self._raw)

    def mean(self) -> float:
        self.values()
        return self._sum / self._summed


class StorageView:
    """What detectron2 calls an EventStorage, on top of the run's store."""

    def __init__(self, store: MetricStore, iteration: Callable[[], int]) -> None:
        self._store, self._iteration = store, iteration
        self._scope = ""
        self._put: dict[str, PutValues] = {}
        self._written_as: dict[str, str] = {}

    @property
    def iter(self) -> int:
        return self._iteration()

    def put_scalar(
        self, name: str, value: Any, smoothing_hint: bool = True, cur_iter: int | None = None
    ) -> None:
        """value: a number, or a tensor with one element. cur_iter is ignored."""
        value = value.detach().clone() if isinstance(value, Tensor) else float(value)
        put = self._put.setdefault(self._scope + name, PutValues())
        put.smoothed, put.at = smoothing_hint, self.iter
        put.add(value)
        self._write(self._scope + name, value, WINDOW if smoothing_hint else 1)

    def put_scalars(
        self, *, smoothing_hint: bool = True, cur_iter: int | None = None, **values: Any
    ) -> None:
        for name, value in values.items():
            self.put_scalar(name, value, smoothing_hint)

    def _write(self, name: str, value: Any, window: int) -> None:
        """A name that the engine uses itself, such as `lr`, is written as `hook/lr`."""
        known = self._written_as.get(name)
        if known is not None:
            self._store.put_scalar(known, value, window=window)
            return
        clean = re.sub(r"[^\w.\- /]", "_", name).strip("/") or "unnamed"
        try:
            self._store.put_scalar(clean, value, window=window)
        except TrainingError:
            clean = f"hook/{clean}"
            self._store.put_scalar(clean, value, window=window)
        self._written_as[name] = clean

    def put_image(self, img_name: str, img_tensor: Any) -> None:
        self._store.put_image(self._scope + img_name, img_tensor)

    def put_histogram(self, hist_name: str, hist_tensor: Any, bins: int = 1000) -> None:
        self._store.put_histogram(self._scope + hist_name, hist_tensor, bins)

    def history(self, name: str) -> MetricHistory:
        put = self._put.get(name)
        if put is not None:
            return MetricHistory(put.values, put.mean)
        series = self._store.history(name)
        return MetricHistory(series.values, series.global_average)

    def histories(self) -> dict[str, MetricHistory]:
        return {name: self.history(name) for name in self._put}

    def latest(self) -> dict[str, tuple[float, int]]:
        """Map the names of the hook's own values to (the last value, its iteration)."""
        return {name: (put.values()[-1], put.at) for name, put in self._put.items()}

    def latest_with_smoothing_hint(self, window_size: int = WINDOW) -> dict[str, tuple[float, int]]:
        """Do as `latest`, with the median of the last values for those with a smoothing hint."""
        return {
            name: (self.history(name).median(window_size if put.smoothed else 1), put.at)
            for name, put in self._put.items()
        }

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Prefix the names of this block with `name/`."""
        before, self._scope = self._scope, name.rstrip("/") + "/"
        try:
            yield
        finally:
            self._scope = before


_current: list[StorageView] = []


def get_event_storage() -> StorageView:
    """Return the storage of the run whose hook is being called, as detectron2's function does."""
    if not _current:
        raise TrainingError("get_event_storage() is for hooks: no hook of detectron2's is called.")
    return _current[-1]


class TrainerView:
    """`self.trainer` of a detectron2 hook."""

    def __init__(self, task: Task) -> None:
        self.iter = self.start_iter = task.iteration
        self.max_iter = sum(phase.own_steps for phase in task.phases if phase.train)
        self.model = task.model
        self.optimizer = task.optimizer.inner
        self.cfg = task.config
        self.storage = StorageView(task.storage, lambda: self.iter)

    def __getattr__(self, name: str) -> Any:
        if name == "data_loader":
            text = "a feed has one iteration at a time, which training uses"
        else:
            text = f"available are {listing(NAMES)}"
        raise AttributeError(f"self.trainer.{name} is not available to a hook in sslengine: {text}")


class Detectron2Hook(Hook):
    """Wrap a detectron2 hook. `config.HOOKS.EXTRA` wraps such hooks automatically."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self._trainer: TrainerView | None = None
        self._loaded: dict[str, Any] | None = None  # until there is a trainer
        self._ended = False

    @property
    def name(self) -> str:
        return type(self.hook).__qualname__

    def on_start(self, task: Task) -> None:
        self._trainer = self.hook.trainer = TrainerView(task)
        if self._loaded is not None:
            self.hook.load_state_dict(self._loaded)
        self._call("before_train")

    def on_step_start(self, task: Task) -> None:
        if task.train and self._trainer is not None:
            self._trainer.iter = task.iteration
            self._call("before_step")

    def on_backward(self, task: Task) -> None:
        self._call("after_backward")

    def on_step(self, task: Task) -> None:
        if task.train:
            self._call("after_step")

    def on_end(self, task: Task) -> None:
        if self._trainer is not None:
            self._trainer.iter = task.iteration
        self._end()

    def on_exception(self, task: Task) -> None:
        self._end()

    def _end(self) -> None:
        if self._trainer is not None and not self._ended:
            self._ended = True  # set first: after_train is not called again for its own error
            self._call("after_train")

    def _call(self, name: str) -> None:
        call = getattr(self.hook, name, None)
        if call is None or self._trainer is None:
            return
        _current.append(self._trainer.storage)
        try:
            call()
        finally:
            _current.pop()

    def state_dict(self) -> dict[str, Any]:
        get = getattr(self.hook, "state_dict", None)
        return dict(get() or {}) if get is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state


@register_hook_adapter("detectron2")
def adapted(hook: Any) -> Detectron2Hook | None:
    return Detectron2Hook(hook) if any(hasattr(hook, name) for name in CALLS) else None
