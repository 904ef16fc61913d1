"""Separate passes over data at any moment of a run, without a trace in it.

    set_loss             the mean loss over a whole set, as a test phase would find it
    compute_features     the features of some training images, as an evaluation computes them

Model and loss are in eval mode; modes, running statistics and random streams are restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.feed import DataFeed
from sslengine.data.judged_view import judged_train
from sslengine.data.options import DataOptions
from sslengine.distributed.collectives import gather
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine.state import Reading
from sslengine.errors import ConfigError, TrainingError
from sslengine.models.model import Model
from sslengine.models.trunks.base import TRUNK_NAMES, PlainTrunk, Trunk, find_trunk
from sslengine.models.weights import AUTO, MODEL, STUDENT, TEACHER
from sslengine.models.weights.state import networks_of
from sslengine.monitor.store import current, make_current


def set_loss(task: Any, feed: Any, options: Any) -> dict[str, float]:
    """Compute the loss and its parts; `options` names the inputs and targets of the batches.

    The method's own hooks run, no others do.
    """
    with _aside(task, task.base_model, task.loss):
        beside = task.beside(Reading(feed, options))
        make_current(beside.storage)
        for _ in range(feed.steps_per_epoch):
            beside.step()
        entries = beside.storage.take_losses()
    if not entries:
        raise TrainingError(f"{type(task.base_model).__name__} gives no losses in eval mode.")
    samples = sum(entry.batch_size for entry in entries)
    return {
        name: sum(entry.parts[name] * entry.batch_size for entry in entries) / samples
        for name in entries[0].parts
    }


class TrainFeatures(NamedTuple):
    """Features of training images of all ranks, on the host, in the order of the dataset."""

    features: Tensor
    labels: Tensor
    network: str


@torch.no_grad()
def compute_features(task: Any, images: int, wanted: str = AUTO) -> TrainFeatures:
    """Compute the features of at most so many images, always the same ones. Collective."""
    network, name = network_of(task, wanted)
    parts: list[tuple[Tensor, ...]] = []
    with _aside(task, network):
        feed = _feed(task, images)
        try:
            for batch in feed.batches():
                with task.precision.autocast():
                    (features,) = trunk_of(network)(batch["data"][0])
                rows = task.precision.as_full(features).flatten(1)
                parts.append((rows, batch["label"][0], batch["data_idx"][0].to(rows.device)))
        finally:
            feed.close()
        mine = (torch.cat(each) for each in zip(*parts, strict=True))
        rows, labels, indices = (gather(each).rows.cpu() for each in mine)
    order = indices.argsort()
    order = order[indices[order] >= 0]  # the placeholder for a batch of unreadable images has -1
    return TrainFeatures(rows[order], labels[order], name)


def network_of(task: Any, wanted: str = AUTO) -> tuple[nn.Module, str]:
    """Return the student, the teacher, or (auto) the one by which the method is evaluated."""
    networks = networks_of(task.loss)
    if not networks:
        return task.base_model, MODEL
    name = networks["judged"] if wanted == AUTO else wanted
    return (task.loss.get_submodule(networks["teacher"]), TEACHER) if name == TEACHER else (
        task.base_model, STUDENT
    )  # fmt: skip


def trunk_of(model: nn.Module) -> Trunk:
    """Return the trunk of a model; raise a ConfigError if it has none."""
    found: Any = find_trunk(model)
    while isinstance(found, Model):  # a trunk that a method gets
        found = found.trunk
    if found is None:
        raise ConfigError(
            f"config.MODEL.BASE_MODEL_NAME: {type(model).__name__} has no submodule "
            f"{', '.join(TRUNK_NAMES)}: name it in its attribute `trunk_part`, or fit(trunk=...)."
        )
    return found if isinstance(found, Trunk) else PlainTrunk(found)


def _feed(task: Any, images: int) -> DataFeed:
    run, data = read(task.config, RunOptions), read(task.config, DataOptions)
    train = judged_train(data)
    train.LABEL_TYPE = "standard" if train.LABEL_SOURCES else "sample_index"
    train.DATA_LIMIT = min(images, task.train_feed.num_samples)
    data.TRAIN = train
    return DataFeed(
        data, "TRAIN", training=False, seed=run.SEED_VALUE, rank=rank(), world_size=world_size(),
        device=task.device, mp_method=run.MULTI_PROCESSING_METHOD,
    )  # fmt: skip


@contextmanager
def _aside(task: Any, *networks: nn.Module) -> Iterator[None]:
    """Put networks into eval mode; restore modes, buffers, random streams and the store."""
    modules = [task.base_model, task.loss]
    modes = [(each, each.training) for one in modules for each in one.modules()]
    buffers = [(each, each.clone()) for one in modules for each in one.buffers()]
    streams, store = rng_state(), current()
    try:
        for network in networks:
            network.eval()
        task.same_statistics()
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for module, mode in modes:
            module.training = mode
        make_current(store)
        set_rng_state(streams)
