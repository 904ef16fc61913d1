"""What messages cost: seconds of a collective, by latency and bandwidth of the links it takes.

    a message of m bytes over a link takes alpha + m / beta seconds

A collective of n ranks is a number of rounds in which all ranks send at once:

    ring all-reduce       2 (n - 1) rounds of size / n
    tree all-reduce       2 log2 n latencies, 2 size / beta: parts of the size follow each other
    ring gather           n - 1 rounds of a rank's share; reduce-scatter: the same backwards
    broadcast             log2 n latencies, size / beta, likewise
    all-to-all            n - 1 rounds of a share of what a rank sends

On several nodes it is made of three: among the ranks of a node, then among ranks of the same
place in each node (each has a network card of its own), then within the node again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    alpha: float  # seconds
    beta: float  # bytes a second, one way, of each rank


@dataclass(frozen=True)
class Fabric:
    """Ranks by nodes, and what joins them."""

    node: Link
    network: Link
    ranks_per_node: int

    def inside(self, ranks: int) -> int:
        return min(ranks, self.ranks_per_node)

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.ranks_per_node)


# ---- one kind of link


def ring_all_reduce(ranks: int, size: float, link: Link) -> float:
    return 2 * (ranks - 1) * (link.alpha + size / ranks / link.beta)


def tree_all_reduce(ranks: int, size: float, link: Link) -> float:
    return 0.0 if ranks == 1 else 2 * (_rounds(ranks) * link.alpha + size / link.beta)


def flat_all_reduce(ranks: int, size: float, link: Link) -> float:
    """The faster of both, as NCCL chooses."""
    return min(ring_all_reduce(ranks, size, link), tree_all_reduce(ranks, size, link))


def ring_gather(ranks: int, share: float, link: Link) -> float:
    return (ranks - 1) * (link.alpha + share / link.beta)


def tree_broadcast(ranks: int, size: float, link: Link) -> float:
    return 0.0 if ranks == 1 else _rounds(ranks) * link.alpha + size / link.beta


def _rounds(ranks: int) -> int:
    return math.ceil(math.log2(ranks))


# ---- on nodes


def all_reduce(ranks: int, size: float, fabric: Fabric) -> float:
    inside, nodes = fabric.inside(ranks), fabric.nodes(ranks)
    if nodes == 1:
        return flat_all_reduce(inside, size, fabric.node)
    within = 2 * ring_gather(inside, size / inside, fabric.node)  # scattered, and gathered again
    by_parts = within + flat_all_reduce(nodes, size / inside, fabric.network)
    # Small ones go up and down a tree as they are.
    whole = tree_all_reduce(inside, size, fabric.node) + tree_all_reduce(
        nodes, size, fabric.network
    )
    return min(by_parts, whole)


def gather(ranks: int, share: float, fabric: Fabric) -> float:
    inside, nodes = fabric.inside(ranks), fabric.nodes(ranks)
    between = ring_gather(nodes, share, fabric.network)
    return between + ring_gather(inside, nodes * share, fabric.node)


def broadcast(ranks: int, size: float, fabric: Fabric) -> float:
    between = tree_broadcast(fabric.nodes(ranks), size, fabric.network)
    return between + tree_broadcast(fabric.inside(ranks), size, fabric.node)


def all_to_all(ranks: int, sent: float, fabric: Fabric) -> float:
    inside, nodes = fabric.inside(ranks), fabric.nodes(ranks)
    here = (inside - 1) * (fabric.node.alpha + sent / ranks / fabric.node.beta)
    share = sent * inside / ranks  # to each other node, by way of the rank of the same place
    return here + (nodes - 1) * (fabric.network.alpha + share / fabric.network.beta)


# Of each kind, what it costs by the bytes that one rank brings: the tensor that is reduced or
# broadcast, a rank's share of what is gathered or scattered, all that a rank sends.
COSTS = {
    "all_reduce": all_reduce,
    "gather": gather,
    "reduce_scatter": gather,
    "broadcast": broadcast,
    "all_to_all": all_to_all,
}


def sent_by_a_rank(kind: str, ranks: int, size: float) -> float:
    """Bytes that leave a rank, however they are routed."""
    factors = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "all_to_all": 1 - 1 / ranks}
    return size * factors.get(kind, ranks - 1)
