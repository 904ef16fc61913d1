"""Is a checkpoint of this run? Its place in the data, its images, its classes, the user's code."""

from __future__ import annotations

import logging
from typing import Any

from sslengine.errors import CheckpointError, listing

log = logging.getLogger("sslengine")


def facts_of_run(task: Any) -> dict[str, Any]:
    """What a checkpoint holds of the run, besides what steps change."""
    return {
        "classes": task.class_names,
        "data": _data_facts(task),
        "list_hashes": _list_hashes(task),
        "code": task.parts.code,
    }


def expect_same_run(task: Any, state: dict[str, Any]) -> None:
    """An error where the checkpoint's numbers would mean other things, else warnings."""
    if not task.test_only:
        _expect_same_data(task, state)
        _warn_of_other_images(_list_hashes(task), state.get("list_hashes") or {})
        _warn_of_other_code(task.parts.code, state.get("code") or {})
    _expect_same_classes(task.class_names, state.get("classes") or [])


def _data_facts(task: Any) -> dict[str, Any]:
    """What must be the same for a step count to mean the same place in the data."""
    feed, plan = task.parts.feeds.for_training, task.parts.plan
    facts = {
        "training samples": feed.num_samples,
        "steps per epoch": feed.steps_per_epoch,
        "OPTIMIZER.accumulate": plan.accumulate,
        "SEED_VALUE": task.seed,
    }
    # Groups of batches end with a phase. Checkpoints of one phase an epoch know no such key.
    parts = plan.phases_per_epoch
    return facts | ({"TRAIN_PHASES_PER_EPOCH": parts} if parts > 1 else {}) | _of_batches(feed)


def _of_batches(feed: Any) -> dict[str, Any]:
    """Older checkpoints know neither. They may differ where an epoch has as many steps."""
    stream = getattr(getattr(feed, "dataset", None), "stream", None)
    lanes = {"ranks x LANES": f"{stream.lanes.ranks} x {stream.lanes.of_a_rank}"} if stream else {}
    return {"images of a step": max(feed.global_batch_sizes), **lanes}


def _expect_same_data(task: Any, state: dict[str, Any]) -> None:
    """Steps are counted in batches: with other batches the count would mean another place."""
    now = _data_facts(task)
    then = {**_of_batches(task.parts.feeds.for_training), **state["data"]}
    changed = [
        f"{key}: {then.get(key)} -> {now.get(key)}"
        for key in dict.fromkeys((*now, *then))
        if then.get(key) != now.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"this run differs from the one that wrote the checkpoint in {'; '.join(changed)}. "
            f"Its place in the data cannot be found again. Give the old values, or start again "
            f"with the weights alone: config.MODEL.WEIGHTS_INIT.PARAMS_FILE and another "
            f"config.CHECKPOINT.DIR."
        )


def _list_hashes(task: Any) -> dict[str, str]:
    """Of the training images; {} of a stream, and of objects of Python."""
    return getattr(task.parts.feeds.for_training, "list_hashes", {})


def _other(now: dict[str, str], then: dict[str, str]) -> list[str]:
    """The keys whose hash is another than in the checkpoint, of those that it has."""
    return [each for each in now if then.get(each, now[each]) != now[each]]


def _warn_of_other_images(now: dict[str, str], then: dict[str, str]) -> None:
    """Not an error: names and labels may have been corrected."""
    if other := _other(now, then):
        log.warning(
            "config.DATA.TRAIN: there are as many images as when the checkpoint was written, but "
            "their %s differ, or have another order. The run uses the present ones.",
            " and ".join(other),
        )


def _expect_same_classes(now: list[list[str]], then: list[list[str]]) -> None:
    """A number must mean the class that it meant: the heads have learned it."""
    for ours, theirs in zip(now, then, strict=False):
        if ours and theirs and ours != theirs:
            raise CheckpointError(
                f"the checkpoint's classes are {listing(theirs, 12)}; this run's are "
                f"{listing(ours, 12)}. Their numbers would be confused: give config.DATA.TRAIN "
                f"(DATA_SOURCES, DATA_PATHS, LABEL_SOURCES) the labels that the run was trained on."
            )


def _warn_of_other_code(now: dict[str, str], then: dict[str, str]) -> None:
    """Not an error: what was edited may be a mistake that was found, or a comment."""
    if other := _other(now, then):
        log.warning(
            "%s: other code than when the checkpoint was written. The steps before it were made by "
            "that one, those that follow are made by the present one.",
            listing(other),
        )
