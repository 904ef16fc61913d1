"""The task's state as one dict, and back: everything that a run needs to resume bit by bit.

Keys are VISSL's where it has them. What differs between ranks is gathered under `ranks`. A
checkpoint of another run is refused: its place in the data, its classes would mean other things.
"""

from __future__ import annotations

import copy
import logging
from contextlib import nullcontext, suppress
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sslengine.checkpoint.rng import rng_state, seed_all, set_rng_state
from sslengine.distributed.collectives import gather_objects
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import like
from sslengine.engine.phases import Progress, place_again
from sslengine.errors import CheckpointError, listing, nearest
from sslengine.hooks.events import OPTIONAL, hook_name, hook_states, load_hook_state, overrides
from sslengine.models.weights.state import load_model_state, model_state, networks_of

log = logging.getLogger("sslengine")

KEYS = frozenset({
    "train", "base_model", "loss", "networks", "classes", "optimizer", "amp", "progress",
    "phase_idx", "train_phase_idx", "num_updates", "losses", "figures", "hooks", "data",
    "list_hashes", "code", "ranks",
})  # fmt: skip


def get_state(task: Any, deep_copy: bool = False) -> dict[str, Any]:
    """Collect the state: every rank takes part, and every rank gets the whole."""
    state = {
        "train": task.train,
        "base_model": model_state(task.base_model),
        "loss": task.loss.state_dict(),
        "networks": networks_of(task.loss),
        "optimizer": task.optimizer.state_dict(),
        "amp": task.precision.state_dict(),
        "progress": task.progress.state_dict(),
        "phase_idx": task.phase_idx,
        "train_phase_idx": task.train_phase_idx,
        "num_updates": task.progress.num_updates,
        **task.storage.state_dict(),
        "hooks": hook_states((*task.hooks, *task.services)),
        "classes": task.class_names,
        "data": _data_facts(task),
        "list_hashes": _list_hashes(task),
        "code": task.parts.code,
        "ranks": gather_objects(_rank_state(task)),
    }
    return copy.deepcopy(state) if deep_copy else state


def _rank_state(task: Any) -> dict[str, Any]:
    compression = task.parts.compression
    return {
        "rng": rng_state(),
        "loss": task.loss.rank_state() if hasattr(task.loss, "rank_state") else {},
        "meters": {meter.name: meter.state_dict() for meter in task.meters},
        "compression": {} if compression is None else compression.state_dict(),
    }


def set_state(task: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Load the state; return the states of hooks, for load_hooks_again after on_start."""
    _same_names("the checkpoint", KEYS, state)
    _expect_same_run(task, state)
    load_model_state(task.base_model, state["base_model"])
    _load_loss(task.loss, state["loss"])
    task.optimizer.load_state_dict(state["optimizer"])
    task.precision.load_state_dict(state["amp"])
    progress = place_again(task.phases, Progress.from_state(state["progress"]))
    task.state.resume(progress, task.parts.plan.phase(progress))
    task.storage.load_state_dict(state)
    hooks = _load_hooks(task, state["hooks"])
    _load_rank_state(task, state["ranks"])
    return hooks


def _load_hooks(task: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Load hooks; return their states. One may be added, one without state left out.

    A hook's on_start may read its state, or make what it is loaded into: load_hooks_again.
    """
    hooks = {hook_name(each): each for each in (*task.hooks, *task.services)}
    stored = {
        name: kept
        for name, kept in state.items()
        if kept and (name in hooks or not kept.get(OPTIONAL))
    }
    _same_names("the hooks of the checkpoint", hooks, stored, optional=hooks)
    for name, kept in stored.items():
        with suppress(CheckpointError) if overrides(hooks[name], "on_start") else nullcontext():
            load_hook_state(hooks[name], kept)
    return stored


def load_hooks_again(task: Any, stored: dict[str, Any]) -> None:
    """Replace the initial values that hooks have set in on_start."""
    for hook in (*task.hooks, *task.services):
        if hook_name(hook) in stored and overrides(hook, "on_start"):
            load_hook_state(hook, stored[hook_name(hook)])


def _same_names(what: str, expected: Any, found: Any, optional: Any = ()) -> None:
    missing = set(expected) - set(found) - set(optional)
    unknown = sorted(set(found) - set(expected))
    if missing or unknown:
        hints = [nearest(name, expected) for name in unknown[:3]]
        raise CheckpointError(
            f"{what} and this run do not fit: missing {listing(missing, 6) or 'nothing'}; "
            f"not known here {listing(unknown, 6) or 'nothing'}. "
            f"{' '.join(filter(None, hints))}".rstrip()
        )


def _load_loss(loss: Any, state: dict[str, Any]) -> None:
    if type(loss).load_state_dict is not nn.Module.load_state_dict:
        loss.load_state_dict(state)  # as VISSL's do that make their parts in the first step
        return
    own = loss.state_dict()
    _same_names("the loss's state in the checkpoint", own, state)
    wrong = [f"{k}: {tuple(state[k].shape)} -> {tuple(own[k].shape)}"
             for k in own if state[k].shape != own[k].shape]  # fmt: skip
    if wrong:
        raise CheckpointError(f"the loss's state has other sizes: {'; '.join(wrong)}.")
    loss.load_state_dict({k: like(state[k], own[k]) for k in own})


def _load_rank_state(task: Any, ranks: list[dict[str, Any]]) -> None:
    same = len(ranks) == world_size()
    if same:
        mine = ranks[rank()]
        for meter in task.meters:
            meter.load_state_dict(_move(mine["meters"][meter.name], task.device))
        set_rng_state(mine["rng"])
        if task.parts.compression is not None:
            task.parts.compression.load_state_dict(mine["compression"], task.device)
    else:
        log.warning(
            "the checkpoint is of %d ranks and this run has %d: random streams start again.",
            len(ranks),
            world_size(),
        )
        seed_all(task.progress.iteration * 1000 + rank())
        for meter in task.meters if rank() == 0 else ():
            meter.load_sum([_move(each["meters"][meter.name], task.device) for each in ranks])
    if not hasattr(task.loss, "load_rank_state"):
        return
    if same:
        task.loss.load_rank_state(mine["loss"])
    elif any(each["loss"] for each in ranks):
        raise CheckpointError(
            f"{type(task.loss).__name__} keeps a state on each rank: a run of {len(ranks)} ranks "
            f"cannot continue with {world_size()}."
        )


def _move(state: Any, device: Any) -> Any:
    """Move a state's tensors to the device: a meter adds the next batches to them."""
    return tree_map(lambda each: each.to(device) if isinstance(each, Tensor) else each, state)


# ---- is it of this run?


def _expect_same_run(task: Any, state: dict[str, Any]) -> None:
    """Raise CheckpointError where the checkpoint's numbers would mean other things; else warn."""
    if not task.test_only:
        now, then = _data_facts(task), state["data"]
        changed = [f"{key}: {then.get(key)} -> {now.get(key)}"
                   for key in {**now, **then} if then.get(key) != now.get(key)]  # fmt: skip
        if changed:
            raise CheckpointError(
                f"this run differs from the one that wrote the checkpoint in {'; '.join(changed)}, "
                f"so its place in the data cannot be found. Give the old values, or start from the "
                f"weights (config.MODEL.WEIGHTS_INIT.PARAMS_FILE) in another config.CHECKPOINT.DIR."
            )
        # Warn only: names and labels may have been corrected, a mistake in the code been found.
        images = _list_hashes(task), state["list_hashes"]
        for what, (new, old) in (("images", images), ("code", (task.parts.code, state["code"]))):
            if other := [each for each in new if old.get(each, new[each]) != new[each]]:
                named = " and ".join(other)
                log.warning("%s: other %s than when the checkpoint was written.", named, what)
    for now, then in zip(task.class_names, state["classes"], strict=False):
        if now and then and now != then:  # each number must mean what the heads have learned
            raise CheckpointError(
                f"config.DATA.TRAIN.LABEL_SOURCES: the checkpoint's classes are "
                f"{listing(then, 12)}; this run's are {listing(now, 12)}."
            )


def _data_facts(task: Any) -> dict[str, Any]:
    """Collect what must be the same for a step count to mean the same place in the data."""
    feed, plan = task.parts.feeds.main, task.parts.plan
    stream = getattr(getattr(feed, "dataset", None), "stream", None)
    parts = plan.phases_per_epoch  # groups of batches end with a phase
    return {
        "training samples": feed.num_samples,
        "steps per epoch": feed.steps_per_epoch,
        "OPTIMIZER.accumulate": plan.accumulate,
        "SEED_VALUE": task.seed,
        **({"TRAIN_PHASES_PER_EPOCH": parts} if parts > 1 else {}),
        "images of a step": max(feed.global_batch_sizes),
        **({"ranks x LANES": f"{stream.lanes.ranks} x {stream.lanes.of_a_rank}"} if stream else {}),
    }


def _list_hashes(task: Any) -> dict[str, str]:
    """Return the hashes of the training images; {} of a stream, and of objects of Python."""
    return getattr(task.parts.feeds.main, "list_hashes", {})
