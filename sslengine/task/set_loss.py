"""The mean loss over a whole set, at any moment of a run, as a test phase would find it.

It is a separate pass with its own state: model and loss are in eval mode, the method's
own hooks run, no others do; random streams are put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.errors import TrainingError
from sslengine.monitor.store import current, make_current
from sslengine.task.run_state import Reading


def set_loss(task: Any, feed: Any, options: Any) -> dict[str, float]:
    """`options`: whose INPUT_KEY_NAMES and TARGET_KEY_NAMES the set's batches have."""
    with _tested(task):
        beside = task.beside(Reading(feed, options))
        make_current(beside.storage)
        for _ in range(feed.steps_per_epoch):
            beside.step()
        entries = beside.ledger.drain()
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
def _tested(task: Any) -> Iterator[None]:
    """Model and loss as in a test phase; afterwards as they were, and the random streams too."""
    networks = task.base_model, task.loss
    modes = [each.training for each in networks]
    streams, store = rng_state(), current()
    try:
        for each in networks:
            each.eval()
        task.same_statistics()
        yield
    finally:
        for each, mode in zip(networks, modes, strict=True):
            each.train(mode)
        make_current(store)
        set_rng_state(streams)
