"""The features of some training images at any moment of a run, as an evaluation computes them.

It is a separate pass without a trace: the images are read by another feed, the network is in eval
mode, and modes, running statistics and random streams are restored.
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
from sslengine.models.networks import AUTO, MODEL, STUDENT, TEACHER, networks_of
from sslengine.task.trained import trunk_of


class Judged(NamedTuple):
    """On the host, of all ranks, in the order of the dataset."""

    features: Tensor
    labels: Tensor
    network: str


@torch.no_grad()
def judged_features(task: Any, images: int, wanted: str = AUTO) -> Judged:
    """Collective. images: at most so many, always the same ones."""
    network, name = network_of(task, wanted)
    parts: list[tuple[Tensor, ...]] = []
    with _without_a_trace(task, network):
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
    return Judged(rows[order], labels[order], name)


def network_of(task: Any, wanted: str = AUTO) -> tuple[nn.Module, str]:
    """The student, the teacher, or (auto) the one by which the method is evaluated."""
    networks = networks_of(task.loss)
    if not networks:
        return task.base_model, MODEL
    name = networks["judged"] if wanted == AUTO else wanted
    return (task.loss.get_submodule(networks["teacher"]), TEACHER) if name == TEACHER else (
        task.base_model, STUDENT
    )  # fmt: skip


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
def _without_a_trace(task: Any, network: nn.Module) -> Iterator[None]:
    modules = [task.base_model, task.loss]
    modes = [(each, each.training) for one in modules for each in one.modules()]
    buffers = [(each, each.clone()) for one in modules for each in one.buffers()]
    streams = rng_state()
    try:
        network.eval()
        task.same_statistics()
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        for module, mode in modes:
            module.training = mode
        set_rng_state(streams)
