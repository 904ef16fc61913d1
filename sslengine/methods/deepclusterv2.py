"""DeepCluster v2: predict the cluster in which an image's last embedding fell.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
2020 (appendix on DeepCluster-v2). A memory keeps an embedding of each training image. At
the start of every train phase spherical k-means divides the memory into clusters, several
times over. With z the embedding of a crop of image i, c_k the centroids of one division
and y_i the cluster of image i in it:

    loss = mean over divisions and crops of  -log( exp(z . c_y / T) / sum_k exp(z . c_k / T) )

Centroids are constants of the phase. In each step the rows of the batch's images are
overwritten by their new embeddings. Before the first phase the model goes through the
training set once, in training mode and without gradient, to fill the memory; the crops
are those of an epoch that is never trained on. An image that DROP_LAST has kept out of
the memory so far has no cluster, and does not count.

Every rank holds the memory of all images, 512 bytes an image and crop at 128 dimensions, or
with `memory_params.sharded` its share of it, and the clusters of all images, 8 bytes an image
and division. It clusters its share. So a run may continue with another number of ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.data.loading.seeding import epoch_generator
from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.distributed.shared_rows import fetch, own_rows, within
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.kmeans import spherical_kmeans
from sslengine.losses.memory import (
    expect_sample_index,
    is_shared,
    overwrite,
    sharding_named,
    zero_rows,
)
from sslengine.methods.base import Method, Step
from sslengine.registry import register_loss

log = logging.getLogger("sslengine")

NAME = "deepclusterv2_loss"
NO_CLUSTER = -100


@dataclass
class ClusteredMemory:
    # The crops that are remembered. Divisions take them in turn.
    crops_for_mb: list[int] = field(default_factory=lambda: [0])
    embedding_dim: int = 128
    # Each rank keeps its share of the rows. auto: where the memory is larger than 1 GiB and there
    # are several ranks.
    sharded: bool | str = "auto"

    def check(self) -> Iterator[str]:
        yield from sharding_named(self)
        if not self.crops_for_mb:
            yield "crops_for_mb: expected the number of a crop, or several; got none."
        if self.embedding_dim < 1:
            yield f"embedding_dim: expected 1 or more, got {self.embedding_dim}."


@dataclass
class DeepClusterOptions:
    # Filled in from the transforms.
    num_crops: int = 2
    temperature: float = 0.1
    # Of each division.
    num_clusters: list[int] = field(default_factory=lambda: [3000, 3000, 3000])
    kmeans_iters: int = 10
    memory_params: ClusteredMemory = field(default_factory=ClusteredMemory)
    # Filled in from the data.
    num_train_samples: int = -1

    def infer(self, facts: RunFacts) -> None:
        if facts.collator not in ("", "multicrop_collator"):
            raise ConfigError(
                f"{NAME} takes crops of an image as a list, and "
                f"config.DATA.TRAIN.COLLATE_FUNCTION is {facts.collator}: set it to "
                f"multicrop_collator."
            )
        expect_sample_index(facts, NAME)
        self.num_crops = facts.views_per_image
        crops = range(self.num_crops)
        if any(crop not in crops for crop in self.memory_params.crops_for_mb):
            raise ConfigError(
                f"config.LOSS.{NAME}.memory_params.crops_for_mb: expected numbers of crops, which "
                f"are {list(crops)} with these TRANSFORMS; got {self.memory_params.crops_for_mb}."
            )

    def check(self) -> Iterator[str]:
        if self.temperature <= 0:
            yield f"temperature: expected a number above 0, got {self.temperature}."
        if not self.num_clusters or min(self.num_clusters) < 1:
            yield f"num_clusters: expected numbers of 1 or more, got {self.num_clusters}."
        if self.kmeans_iters < 0:
            yield f"kmeans_iters: expected 0 or more, got {self.kmeans_iters}."


@register_loss(NAME, options=DeepClusterOptions)
class DeepClusterLoss(Method):
    def __init__(self, options: DeepClusterOptions, run: RunFacts) -> None:
        super().__init__()
        self.options, self.seed = options, run.seed
        samples = _num_samples(options, run)
        self.crops = options.memory_params.crops_for_mb
        dim = options.memory_params.embedding_dim
        # One row for each sample; `filled` where something stands in it.
        shared = is_shared(options.memory_params.sharded, samples, len(self.crops), dim)
        self.register_buffer("memory", zero_rows(samples, len(self.crops), dim, shared=shared))
        self.register_buffer("filled", torch.zeros(samples, dtype=torch.bool))
        divisions = len(options.num_clusters)
        self.register_buffer("assignments", torch.full((divisions, samples), NO_CLUSTER))
        self.memory: Tensor
        self.filled: Tensor
        self.assignments: Tensor
        for division, clusters in enumerate(options.num_clusters):
            self.register_buffer(f"centroids{division}", torch.zeros(clusters, dim))

    def attach(self, model: nn.Module) -> None:
        self._model = (model,)  # a tuple, so that it is no part of this module

    def before_phase(self, step: Step) -> None:
        if not bool(self.filled.any()):
            self._fill(step)
        # Epochs of data count from 0; these streams are none of theirs.
        self.cluster(epoch_generator(self.seed, -1 - step.phase))

    def centroids(self, division: int) -> Tensor:
        return self.get_buffer(f"centroids{division}")

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """output: (crops * B, D), crop 0 of all images first; target: samples' numbers, so too."""
        self._check(output, target)
        embeddings = F.normalize(output, dim=1)
        everybodys = gather(target).rows if self.training else target
        counts = (self.assignments[:, everybodys] != NO_CLUSTER).sum(dim=1).clamp(min=1)
        sums = torch.stack([self._sum(i, embeddings, target) for i in range(len(counts))])
        if self.training:
            self.remember(self._remembered_crops(embeddings), target[: self._images(target)])
        # Divided by what counts on the average rank: the ranks' mean is that of all samples.
        return (sums * (world_size() if self.training else 1) / counts).mean()

    def _sum(self, division: int, embeddings: Tensor, target: Tensor) -> Tensor:
        scores = embeddings @ self.centroids(division).T / self.options.temperature
        clusters = self.assignments[division, target]
        return F.cross_entropy(scores, clusters, ignore_index=NO_CLUSTER, reduction="sum")

    def _check(self, output: Tensor, target: Tensor) -> None:
        crops, dim = self.options.num_crops, self.memory.shape[2]
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        if shape != (len(target), dim) or len(target) % crops:
            raise TrainingError(
                f"{NAME} needs an embedding of {dim} columns (memory_params.embedding_dim) for "
                f"each of {crops} crops of each image; the model gave {shape} for {len(target)} "
                f"labels. See config.MODEL.HEAD.PARAMS and DATA.TRAIN.COLLATE_FUNCTION."
            )

    def _images(self, target: Tensor) -> int:
        return len(target) // self.options.num_crops

    def _remembered_crops(self, embeddings: Tensor) -> Tensor:
        """(B, crops, D) of the crops that are remembered."""
        by_crop = embeddings.detach().chunk(self.options.num_crops)
        return torch.stack([by_crop[crop] for crop in self.crops], dim=1)

    def remember(self, embeddings: Tensor, samples: Tensor) -> None:
        """Overwrite the rows of all ranks' samples (B,) with embeddings (B, crops, D)."""
        rows = gather(samples).rows
        values = gather(embeddings).rows
        overwrite(self.memory, rows, values, torch.ones_like(rows, dtype=torch.bool))
        self.filled.index_fill_(0, rows, True)  # `= True` would copy a tensor of the host

    @torch.no_grad()
    def _fill(self, step: Step) -> None:
        log.info("filling the memory: once through the training set")
        (model,) = self._model
        for sample in step.training_set():
            crops = [sample["input"][crop] for crop in self.crops]
            with step.autocast():
                output = model(crops)
            embeddings = F.normalize(step.full(output)[0], dim=1).chunk(len(crops))
            self.remember(torch.stack(embeddings, dim=1), sample["target"][: len(crops[0])])

    @torch.no_grad()
    def cluster(self, generator: torch.Generator) -> None:
        """Divide the memory again. `generator` must draw the same on all ranks.

        Centroids start at different images, as long as there are enough of them.
        """
        filled = self.filled.nonzero().squeeze(1)
        share = own_rows(len(self.filled))
        mine = filled[(filled >= share.start) & (filled < share.stop)]
        here, places, _ = within(self.memory, mine)
        for division, clusters in enumerate(self.options.num_clusters):
            crop = division % len(self.crops)
            order = torch.randperm(len(filled), generator=generator)
            drawn = order[torch.arange(clusters) % len(filled)].to(filled.device)
            start = fetch(self.memory, filled[drawn])[:, crop]
            found = spherical_kmeans(here[places, crop], start, self.options.kmeans_iters)
            self.centroids(division).copy_(found.centroids)
            self._set_assignments(division, mine, found.assignments)

    def _set_assignments(self, division: int, samples: Tensor, clusters: Tensor) -> None:
        """Each rank knows those of its samples: added up, they are those of all."""
        everybodys = torch.zeros_like(self.assignments[division])
        everybodys[samples] = clusters - NO_CLUSTER
        self.assignments[division] = sum_in_place(everybodys) + NO_CLUSTER


def _num_samples(options: DeepClusterOptions, run: RunFacts) -> int:
    samples = run.num_train_samples or options.num_train_samples
    if samples < 1:
        raise ConfigError(
            f"config.LOSS.{NAME}.num_train_samples: expected 1 or more, got {samples}."
        )
    if samples < max(options.num_clusters):
        log.warning(
            "config.LOSS.%s.num_clusters: %d clusters of %d images: many will be empty.",
            NAME,
            max(options.num_clusters),
            samples,
        )
    return samples
