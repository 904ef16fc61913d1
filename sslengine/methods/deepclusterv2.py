"""DeepCluster v2: predict the cluster of an image's previous embedding.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
2020 (appendix on DeepCluster-v2). A memory keeps an embedding of each training image. At
the start of every train phase spherical k-means clusters the memory, once for each division.
With z the embedding of a crop of image i, c_k the centroids of one division and y_i the
cluster of image i in it:

    loss = mean over divisions and crops of  -log( exp(z . c_y / T) / sum_k exp(z . c_k / T) )

Centroids are constant during a phase. Each step overwrites the rows of the batch's images with
their new embeddings. Before the first phase, one pass over the training set in training mode and
without gradient fills the memory, with the crops of an epoch that is not used for training. An
image that DROP_LAST has kept out of the memory so far has no cluster and does not count.

Every rank holds the memory of all images (512 bytes per image and crop at 128 dimensions), or
with `memory_params.sharded` its shard, and the clusters of all images (8 bytes per image and
division). Each rank clusters its shard, so a run may resume with another number of ranks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, choice
from sslengine.data.seeding import epoch_generator
from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError
from sslengine.losses.kmeans import spherical_kmeans
from sslengine.losses.memory import fetch, is_shared, locate, overwrite, own_rows, zero_rows
from sslengine.losses.views import split_views
from sslengine.methods.base import Method, Step
from sslengine.registry import register_loss

log = logging.getLogger("sslengine")

NAME = "deepclusterv2_loss"
NO_CLUSTER = -100


@dataclass
class ClusteredMemory:
    # Numbers of the crops in the memory. Divisions use them in turn.
    crops_for_mb: list[int] = field(default_factory=lambda: [0])
    # Width of the embeddings: that of the last head.
    embedding_dim: int = at_least(1, 128)
    # Each rank holds a shard of the rows. auto: if the memory is larger than 1 GiB and there are
    # several ranks.
    sharded: bool | str = choice("auto", True, False)


@dataclass
class DeepClusterOptions:
    # Set from the transforms.
    num_crops: int = 2
    # Scores are divided by it.
    temperature: float = above(0, 0.1)
    # Number of clusters in each division.
    num_clusters: list[int] = at_least(1, [3000, 3000, 3000])
    # Iterations of k-means before each phase.
    kmeans_iters: int = at_least(0, 10)
    # The memory that is clustered.
    memory_params: ClusteredMemory = field(default_factory=ClusteredMemory)
    # Set from the data.
    num_train_samples: int = -1

    def infer(self, facts: RunFacts) -> None:
        self.num_crops = facts.views_per_image


@register_loss(
    NAME,
    options=DeepClusterOptions,
    crops="memory_params.crops_for_mb",
    collators=("multicrop_collator",),
    sample_index=True,
)
class DeepClusterLoss(Method):
    def __init__(self, options: DeepClusterOptions, run: RunFacts) -> None:
        super().__init__()
        self.options, self.seed = options, run.seed
        samples = _num_samples(options, run)
        self.crops = options.memory_params.crops_for_mb
        dim = options.memory_params.embedding_dim
        # One row for each sample; `filled` marks rows with an embedding.
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
        self._model = (model,)  # in a tuple, so that it is not a submodule

    def before_phase(self, step: Step) -> None:
        if not bool(self.filled.any()):
            self._fill(step)
        # Epochs of data count from 0; these streams are none of theirs.
        self.cluster(epoch_generator(self.seed, -1 - step.phase))

    def centroids(self, division: int) -> Tensor:
        return self.get_buffer(f"centroids{division}")

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """output: (crops * B, D), crop 0 of all images first; target: their sample numbers."""
        embeddings = F.normalize(output, dim=1)
        all_targets = gather(target).rows if self.training else target
        counts = (self.assignments[:, all_targets] != NO_CLUSTER).sum(dim=1).clamp(min=1)
        sums = torch.stack([self._sum(i, embeddings, target) for i in range(len(counts))])
        if self.training:
            self.store(self._stored_crops(embeddings), target[: self._images(target)])
        # Divided by the mean count per rank, so the mean over ranks is the mean over samples.
        return (sums * (world_size() if self.training else 1) / counts).mean()

    def _sum(self, division: int, embeddings: Tensor, target: Tensor) -> Tensor:
        scores = embeddings @ self.centroids(division).T / self.options.temperature
        clusters = self.assignments[division, target]
        return F.cross_entropy(scores, clusters, ignore_index=NO_CLUSTER, reduction="sum")

    def _images(self, target: Tensor) -> int:
        return len(target) // self.options.num_crops

    def _stored_crops(self, embeddings: Tensor) -> Tensor:
        """(B, crops, D) of the crops in the memory."""
        views = split_views(embeddings.detach(), self.options.num_crops, NAME)
        return torch.stack([views[crop] for crop in self.crops], dim=1)

    def store(self, embeddings: Tensor, samples: Tensor) -> None:
        """Overwrite the rows of all ranks' samples (B,) with embeddings (B, crops, D)."""
        rows = gather(samples).rows
        values = gather(embeddings).rows
        overwrite(self.memory, rows, values, torch.ones_like(rows, dtype=torch.bool))
        self.filled.index_fill_(0, rows, True)  # `= True` would copy a host tensor

    @torch.no_grad()
    def _fill(self, step: Step) -> None:
        log.info("filling the memory: one pass over the training set")
        (model,) = self._model
        for sample in step.training_set():
            crops = [sample["input"][crop] for crop in self.crops]
            with step.autocast():
                output = model(crops)
            embeddings = F.normalize(step.full(output)[0], dim=1).chunk(len(crops))
            self.store(torch.stack(embeddings, dim=1), sample["target"][: len(crops[0])])

    @torch.no_grad()
    def cluster(self, generator: torch.Generator) -> None:
        """Cluster the memory. `generator` must draw the same on all ranks.

        Centroids start at different images if there are enough of them.
        """
        filled = self.filled.nonzero().squeeze(1)
        share = own_rows(len(self.filled))
        mine = filled[(filled >= share.start) & (filled < share.stop)]
        here, places, _ = locate(self.memory, mine)
        for division, clusters in enumerate(self.options.num_clusters):
            crop = division % len(self.crops)
            order = torch.randperm(len(filled), generator=generator)
            drawn = order[torch.arange(clusters) % len(filled)].to(filled.device)
            start = fetch(self.memory, filled[drawn])[:, crop]
            found = spherical_kmeans(here[places, crop], start, self.options.kmeans_iters)
            self.centroids(division).copy_(found.centroids)
            self._set_assignments(division, mine, found.assignments)

    def _set_assignments(self, division: int, samples: Tensor, clusters: Tensor) -> None:
        """Each rank has the clusters of its samples; their sum has those of all samples."""
        of_all = torch.zeros_like(self.assignments[division])
        of_all[samples] = clusters - NO_CLUSTER
        self.assignments[division] = sum_in_place(of_all) + NO_CLUSTER


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
