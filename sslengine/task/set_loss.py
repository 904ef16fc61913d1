"""The mean loss over a whole set, at any moment of a run, as a test phase would find it.

Model and loss are in eval mode, the method's own hooks run, no others do; random streams,
progress, meters, and the losses of the phase under way stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.distributed.data_parallel import broadcast_all
from sslengine.hooks.events import compile_events
from sslengine.monitor.loss_ledger import LossLedger
from sslengine.monitor.perf import PerfStats
from sslengine.task.last_batch import LastBatch
from sslengine.task.progress import ALONE


def set_loss(task: Any, feed: Any, options: Any) -> dict[str, float]:
    """`options`: whose INPUT_KEY_NAMES and TARGET_KEY_NAMES the set's batches have."""
    with _for_a_while(task, feed, options):
        for _ in range(feed.steps_per_epoch):
            task.train_step_function(task)
            task.progress.step += 1
        entries = task.ledger.drain()
    samples = sum(entry.batch_size for entry in entries)
    return {
        name: sum(entry.parts[name] * entry.batch_size for entry in entries) / samples
        for name in (entries[0].parts if entries else ())
    }


@contextmanager
def _for_a_while(task: Any, feed: Any, options: Any) -> Iterator[None]:
    temporary = {
        "train": False,
        "ledger": LossLedger(check_finite=False),
        "perf": PerfStats(),
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
    streams = rng_state()
    try:
        vars(task).update(temporary)
        task.progress.step = 0
        task.base_model.eval()
        task.loss.eval()
        if task.broadcasts_before_eval:
            broadcast_all(task.base_model.buffers())
        yield
    finally:
        vars(task).update(kept)
        task.base_model.train(modes[0])
        task.loss.train(modes[1])
        set_rng_state(streams)
