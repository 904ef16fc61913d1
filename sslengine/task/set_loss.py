"""The mean loss over a whole set, at any moment of a run, as a test phase would find it.

Model and loss are in eval mode, the method's own hooks run, no others do; random streams,
progress, meters, figures, and the losses of the phase under way stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.errors import TrainingError
from sslengine.hooks.events import compile_events
from sslengine.monitor.perf import PerfStats
from sslengine.monitor.store import MetricStore, current, make_current
from sslengine.task.last_batch import LastBatch
from sslengine.task.progress import ALONE


def set_loss(task: Any, feed: Any, options: Any) -> dict[str, float]:
    """`options`: whose INPUT_KEY_NAMES and TARGET_KEY_NAMES the set's batches have."""
    with _for_a_while(task, feed, options):
        for _ in range(feed.steps_per_epoch):
            task.train_step_function(task)
            task.progress.step += 1
        entries = task.ledger.drain()
    if not entries:
        raise TrainingError(
            f"{type(task.base_model).__name__} gives predictions in eval mode, and no "
            f"losses: there is none over a set (config.HOOKS.EVALUATE_LOSS, session.evaluate_loss)."
        )
    samples = sum(entry.batch_size for entry in entries)
    return {
        name: sum(entry.parts[name] * entry.batch_size for entry in entries) / samples
        for name in entries[0].parts
    }


@contextmanager
def _for_a_while(task: Any, feed: Any, options: Any) -> Iterator[None]:
    temporary = {
        "train": False,
        "perf": PerfStats(),
        "storage": MetricStore(active=False, check_finite=False),
        "last_batch": LastBatch(),
        "active_meters": [],
        "group": ALONE,
        "progress": copy.copy(task.progress),
        "input_keys": options.INPUT_KEY_NAMES,
        "target_keys": options.TARGET_KEY_NAMES,
        "_calls": compile_events(task.own_hooks),
        "_sizes": feed.batch_sizes,
        "_global_sizes": feed.global_batch_sizes,
        "_batches": feed.batches(),
    }
    kept = {name: getattr(task, name) for name in temporary if hasattr(task, name)}
    modes = task.base_model.training, task.loss.training
    streams, store = rng_state(), current()
    try:
        vars(task).update(temporary)
        make_current(task.storage)
        task.progress.step = 0
        task.base_model.eval()
        task.loss.eval()
        task.same_statistics()
        yield
    finally:
        vars(task).update(kept)
        task.base_model.train(modes[0])
        task.loss.train(modes[1])
        make_current(store)
        set_rng_state(streams)
