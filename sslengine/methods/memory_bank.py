"""NPID, NPID++ and PIRL: recognise an image's row among random rows of a memory bank.

Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, 2018:
a memory holds one row v_i for each training image. An embedding f of image i is scored
against v_i and against rows drawn uniformly, s = v . f / T, with one of two losses:

    nce             equations 4 to 8, see `noise_contrastive`
    cross_entropy   -log( exp(s_i) / (exp(s_i) + sum over drawn rows j of exp(s_j)) )

Misra and van der Maaten, Self-Supervised Learning of Pretext-Invariant Representations,
2020, equation 5: this loss is computed for the patches of an image and for the image itself,
and summed with weights. The model then returns a list of embeddings in the order of
MODEL.MULTI_INPUT_HEAD_MAPPING, with one of `loss_weights` for each.

After the losses of a batch, the rows of its images are updated with their new embeddings:
m * old + (1 - m) * new, scaled to unit length. Every rank holds the whole memory, or with
`memory_params.sharded` its shard, and updates there the rows of all ranks' images; of two
embeddings of one image in a batch the last counts, in the order of ranks. The target is the
number of the sample.

Each rank draws negatives from its own random stream, so a batch on two ranks gets other
negatives than the same batch on one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, choice, share
from sslengine.distributed.collectives import gather
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError
from sslengine.losses.memory import fetch, is_shared, move_towards, random_rows
from sslengine.methods.base import Method
from sslengine.registry import register_loss

NAME = "nce_loss_with_memory"


@dataclass
class NegativeSampling:
    # Rows drawn for each embedding.
    num_negatives: int = at_least(1, 16000)
    # random: on the device. debug: by numpy on the host: the same on any device, but slow.
    type: str = choice("random", "debug")


@dataclass
class MemoryOptions:
    # Number of rows; -1: the number of training samples.
    memory_size: int = -1
    # Width of the embeddings: that of the last head.
    embedding_dim: int = at_least(1, 128)
    # Weight of the old row when it is updated with a new embedding.
    momentum: float = share(0.5)
    # Start with rows of unit length.
    norm_init: bool = True
    # Every embedding updates the memory; if false, only that of update_mem_with_emb_index.
    update_mem_on_forward: bool = True
    # Each rank holds a shard of the rows, and fetches drawn rows from the other ranks.
    # auto: if the memory is larger than 1 GiB and there are several ranks.
    sharded: bool | str = choice("auto", True, False)


@dataclass
class MemoryBankOptions:
    # nce, or cross_entropy over the own row and the negatives.
    loss_type: str = choice("nce", "cross_entropy")
    # Normalise embeddings to unit length.
    norm_embedding: bool = True
    # The similarities are divided by it.
    temperature: float = above(0, 0.07)
    # One weight for each embedding of the model.
    loss_weights: list[float] = field(default_factory=lambda: [1.0])
    # Z of the nce loss; -1: estimated from the first batch.
    norm_constant: float = above(0, -1.0, also=-1.0)
    # The embedding that updates the memory, if not every one does.
    update_mem_with_emb_index: int = -100
    # Which rows are negatives.
    negative_sampling_params: NegativeSampling = field(default_factory=NegativeSampling)
    # The rows, one for each image.
    memory_params: MemoryOptions = field(default_factory=MemoryOptions)
    # Set from the data.
    num_train_samples: int = -1
    # Samples with this number are ignored in the loss and in the memory.
    ignore_index: int = -1

    def check(self) -> Iterator[str]:
        embeddings = range(len(self.loss_weights))
        if (
            not self.memory_params.update_mem_on_forward
            and self.update_mem_with_emb_index not in embeddings
        ):
            yield (
                f"update_mem_with_emb_index: expected one of {list(embeddings)}, the embedding "
                f"that updates the memory if memory_params.update_mem_on_forward is false; got "
                f"{self.update_mem_with_emb_index}."
            )


@register_loss(NAME, options=MemoryBankOptions, sample_index=True)
class MemoryBankLoss(Method):
    def __init__(self, options: MemoryBankOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options
        self.num_rows = _memory_size(options, run)
        memory = options.memory_params
        shared = is_shared(memory.sharded, self.num_rows, memory.embedding_dim)
        rows = random_rows(self.num_rows, memory.embedding_dim, memory.norm_init, shared)
        self.register_buffer("memory", rows)
        self.memory: Tensor
        # Infinite until it is estimated.
        known = options.norm_constant > 0
        log_z = math.log(options.norm_constant) if known else math.inf
        self.register_buffer("log_partition", torch.tensor(log_z, dtype=torch.float64))
        self.log_partition: Tensor
        self._partition_known = known
        self.register_load_state_dict_post_hook(_note_partition)  # type: ignore[no-untyped-call]

    def forward(self, output: Tensor | Sequence[Tensor], target: Tensor) -> Tensor:
        """output: (B, D), or a list of these; target: the numbers of the samples (B,)."""
        embeddings = [output] if isinstance(output, Tensor) else list(output)
        if self.options.norm_embedding:
            embeddings = [F.normalize(each, dim=1) for each in embeddings]
        counted = target != self.options.ignore_index
        all_targets = gather(target).rows if self.training else target
        rows = torch.where(counted, target, 0)
        weighted = [
            self._losses(embedding, rows) if weight == 1 else weight * self._losses(embedding, rows)
            for weight, embedding in zip(self.options.loss_weights, embeddings, strict=True)
        ]
        total = weighted[0] if len(weighted) == 1 else torch.stack(weighted).sum(dim=0)
        if self.training:
            self._update_memory(embeddings, all_targets)
        # Divided by the mean count per rank, so the mean over ranks is the mean over samples.
        ranks = world_size() if self.training else 1
        count = (all_targets != self.options.ignore_index).sum().clamp(min=1)
        mean = (total * counted).sum() / count
        return mean if ranks == 1 else mean * ranks

    def _losses(self, embedding: Tensor, rows: Tensor) -> Tensor:
        """The loss of each embedding (B,)."""
        temperature = self.options.temperature
        positives = (fetch(self.memory, rows) * embedding).sum(dim=1) / temperature
        # A copy of the rows: the memory may be updated before the backward pass.
        drawn = fetch(self.memory, self._draw(rows))
        negatives = torch.bmm(drawn, embedding.unsqueeze(2)).squeeze(2) / temperature
        if self.options.loss_type == "cross_entropy":
            scores = torch.cat([positives.unsqueeze(1), negatives], dim=1)
            return -torch.log_softmax(scores, dim=1)[:, 0]
        return noise_contrastive(positives, negatives, self._log_z(negatives), self.num_rows)

    def _draw(self, rows: Tensor) -> Tensor:
        """Rows drawn uniformly from the memory, the own row included, as in the paper."""
        sampling = self.options.negative_sampling_params
        shape = (len(rows), sampling.num_negatives)
        if sampling.type == "debug":
            drawn = np.random.randint(0, self.num_rows, shape)  # noqa: NPY002 - in the checkpoint
            return torch.from_numpy(drawn).to(rows.device)
        return torch.randint(self.num_rows, shape, device=rows.device)

    def _log_z(self, negatives: Tensor) -> Tensor:
        """Equation 8, estimated from the first batch of all ranks and then constant."""
        if self._partition_known:
            return self.log_partition
        estimate = estimate_log_partition(negatives.detach(), self.num_rows)
        if self.training:
            if world_size() > 1:
                estimates = gather(estimate.unsqueeze(0)).rows
                estimate = torch.logsumexp(estimates, dim=0) - math.log(world_size())
            self.log_partition.copy_(estimate)
            self._partition_known = True
        return estimate

    def _update_memory(self, embeddings: list[Tensor], all_targets: Tensor) -> None:
        options = self.options
        if not options.memory_params.update_mem_on_forward:
            embeddings = [embeddings[options.update_mem_with_emb_index]]
        counted = all_targets != options.ignore_index
        rows = torch.where(counted, all_targets, 0)
        for embedding in embeddings:
            values = gather(embedding.detach()).rows
            momentum = options.memory_params.momentum
            move_towards(self.memory, rows, values, counted, momentum)


def _memory_size(options: MemoryBankOptions, run: RunFacts) -> int:
    samples = run.num_train_samples or options.num_train_samples
    size = options.memory_params.memory_size
    if size <= 0:
        size = samples
    if size <= 0 or size < samples:
        raise ConfigError(
            f"config.LOSS.{NAME}.memory_params.memory_size: {size} rows for {samples} training "
            f"samples; expected at least as many rows, or -1 for as many."
        )
    return size


def _note_partition(loss: MemoryBankLoss, incompatible: object) -> None:
    # Read once here, so that no step synchronises with the device.
    loss._partition_known = bool(torch.isfinite(loss.log_partition))


def noise_contrastive(
    positives: Tensor, negatives: Tensor, log_partition: Tensor, num_samples: int
) -> Tensor:
    """Return J of each anchor from its scores: positives (A,), negatives (A, m), n num_samples.

    P(i | f) = exp(s_i) / Z                                              (eq. 4)
    h(i, f) = P(i | f) / (P(i | f) + m / n)                              (eq. 6)
    J = -log h(i, f) - sum over m drawn rows j of log(1 - h(j, f))       (eq. 7)
    Z = n / m * sum over m drawn rows j of exp(s_j)                      (eq. 8)
    """
    odds = log_partition + math.log(negatives.shape[1] / num_samples)
    return -F.logsigmoid(positives - odds) - F.logsigmoid(odds - negatives).sum(dim=1)


def estimate_log_partition(negatives: Tensor, num_samples: int) -> Tensor:
    """Return log Z from the scores of uniformly drawn rows."""
    log_mean = torch.logsumexp(negatives.flatten(), dim=0) - math.log(negatives.numel())
    return log_mean + math.log(num_samples)
