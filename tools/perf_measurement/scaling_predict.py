"""From what was measured of a training step to the same step on any number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scaling_cost import COSTS, Fabric, Link
from scaling_measure import Message

BACKWARD = "backward of gather and sums"


@dataclass(frozen=True)
class Machine:
    """Published peaks, and what is taken to be reached of them."""

    fabric: Fabric
    memory: float  # bytes of a GPU
    flops: float  # peak a second: half precision; without AMP half of it
    utilisation: float = 0.15
    overlap: float = 2 / 3  # of the computation gradients travel beside: the backward pass
    copy: float = 20e9  # bytes a second from GPU to host
    disk: float = 1e9  # bytes a second that a rank writes
    storage: float = 50e9  # bytes a second that all ranks write together


# Links at 80 to 90 % of their peak; latencies are those of a round of NCCL.
MACHINES = {
    "h100": Machine(Fabric(Link(3e-6, 360e9), Link(8e-6, 45e9), 8), 80e9, 989e12),
    "a100": Machine(Fabric(Link(3e-6, 240e9), Link(8e-6, 22e9), 8), 80e9, 312e12),
}


@dataclass(frozen=True)
class Step:
    """One rank's step: seconds, and bytes it holds."""

    compute: float
    waits: dict[str, float]  # for messages, by what they are for; gradients: what is not hidden
    held: dict[str, float]
    copy: float  # of a checkpoint: training waits
    write: float  # beside training

    @property
    def seconds(self) -> float:
        return self.compute + sum(self.waits.values())

    @property
    def memory(self) -> float:
        return sum(self.held.values())


@dataclass(frozen=True)
class Method:
    """What scaling_measure.measure found, of one config."""

    images: int  # of a rank
    amp: bool
    messages: list[Message]
    flops_per_image: float
    flops_per_pair: float
    activations_per_image: float
    sync_bn_group: int | None
    held: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Method:
        names = ("parameters", "gradients", "optimizer", "teacher", "memory")
        return cls(
            **{name: facts[name] for name in cls.__dataclass_fields__ if name in facts}
            | {"messages": [Message(*each) for each in facts["messages"]]},
            held={name: float(facts[name]) for name in names},
        )

    def among(self, message: Message, ranks: int) -> int:
        """The ranks that take part: batch norms may have groups of their own."""
        return min(ranks, self.sync_bn_group or ranks) if self._of_norms(message) else ranks

    def _of_norms(self, message: Message) -> bool:
        if (
            message.of == BACKWARD
            and message.kind == "all_reduce"
            and self.sync_bn_group is not None
        ):
            # Of a loss that has sums of its own some are taken for those of batch norms.
            return all(each.of != "cross_correlation" for each in self.messages)
        return message.of == "sync_batchnorm"

    def on_gpus(self) -> list[Message]:
        """torch's own SyncBN, which runs there, says in one message what takes two on a CPU: it
        gathers mean and variance, and reduces both gradients."""
        return [
            each._replace(
                kind="gather" if each.of == "sync_batchnorm" else each.kind,
                fixed=2 * each.fixed,
                times=each.times / 2,
            )
            if self._of_norms(each)
            else each
            for each in self.messages
        ]


def predict(
    method: Method,
    ranks: int,
    machine: Machine,
    sharding: str = "ddp",
    compute: float | None = None,
) -> Step:
    """compute: measured seconds of a step's computation; else from its multiplications."""
    images = method.images
    if compute is None:
        flops = (method.flops_per_image + method.flops_per_pair * images * ranks) * images
        compute = flops / (machine.flops * machine.utilisation * (1 if method.amp else 0.5))
    waits = _waits(method, ranks, machine, sharding)
    if "gradients" in waits:
        waits["gradients"] = max(0.0, waits["gradients"] - machine.overlap * compute)
    held = _held(method, ranks, sharding)
    saved = [held[name] for name in ("parameters", "optimizer", "teacher", "memory")]
    bytes_here = sum(saved)
    write = bytes_here / machine.disk
    if sharding == "fsdp":
        write = max(write, bytes_here * ranks / machine.storage)
    return Step(compute, waits, held, bytes_here / machine.copy, write)


def _waits(method: Method, ranks: int, machine: Machine, sharding: str) -> dict[str, float]:
    waits: dict[str, float] = {}
    for message in _messages(method, ranks, sharding) if ranks > 1 else []:
        taking_part = method.among(message, ranks)
        one = COSTS[message.kind](taking_part, message.size(method.images), machine.fabric)
        waits[message.of] = waits.get(message.of, 0.0) + message.times * one
    return waits


def _messages(method: Method, ranks: int, sharding: str) -> list[Message]:
    """As measured with DDP; what else another way of sharding sends instead of, or beside it."""
    measured = method.on_gpus()
    if sharding == "ddp":
        return measured
    weights = method.held["parameters"]
    if sharding == "zero":  # each rank sends what it has updated
        return [*measured, Message("gather", "parameters", weights / ranks, 0.0)]
    rest = [each for each in measured if each.of != "gradients"]
    share = weights / ranks  # gathered for the forward and for the backward pass
    gathered = Message("gather", "gradients", share, 0.0, times=2)
    return [*rest, gathered, Message("reduce_scatter", "gradients", share, 0.0)]


def _held(method: Method, ranks: int, sharding: str) -> dict[str, float]:
    split = {
        "ddp": (),
        "zero": ("optimizer",),
        "fsdp": ("parameters", "gradients", "optimizer", "teacher"),
    }[sharding]
    held = {name: size / (ranks if name in split else 1) for name, size in method.held.items()}
    # Half precision keeps half of it, roughly: batch norms keep float32.
    activations = method.activations_per_image * method.images
    held["activations"] = activations * (0.5 if method.amp else 1.0)
    everyones = [each for each in method.messages if each.kind in ("gather", "reduce_scatter")]
    held["gathered"] = sum(
        each.times * each.size(method.images) * method.among(each, ranks) for each in everyones
    )
    return held


# ---- what breaks first

RANKS = tuple(2**power for power in range(3, 13))
SLOW = 0.1  # of the computation


def breaks_first(method: Method, machine: Machine, compute: float | None = None) -> str:
    """In words: the first number of ranks where memory or messages get in the way."""
    steps = {ranks: predict(method, ranks, machine, compute=compute) for ranks in RANKS}
    first = steps[RANKS[0]]
    told = []
    for ranks, step in steps.items():
        if step.memory > machine.memory:
            grown = max(step.held, key=lambda name: step.held[name] - first.held.get(name, 0.0))
            part = grown if step.held[grown] > first.held[grown] else max(
                step.held, key=lambda name: step.held[name]
            )  # fmt: skip
            told.append(f"memory at {ranks}: {part} {step.held[part] / 1e9:.0f} GB")
            break
    for ranks, step in steps.items():
        waited = sum(step.waits.values())
        if waited > SLOW * step.compute:
            part = max(step.waits, key=lambda name: step.waits[name])
            told.append(f"messages at {ranks}: {part}, {100 * waited / step.compute:.0f} %")
            break
    return "; ".join(told) or f"nothing up to {RANKS[-1]}"
