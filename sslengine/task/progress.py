"""How far a run has come: a few numbers that say everything, and go into the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass
class Progress:
    phase: int = 0  # index of the current phase, or of the next one
    step: int = 0  # steps made in it
    of: int = 0  # steps that it has; 0 in checkpoints that did not note it
    testing: int = 0  # 1: it is a test phase
    iteration: int = 0  # train steps made
    samples: int = 0  # training samples seen, over all ranks
    num_updates: int = 0  # optimizer steps made
    stopped: int = 0  # 1: a hook has ended the run before its last phase

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Progress:
        return cls(**{each.name: int(state.get(each.name, 0)) for each in fields(cls)})


@dataclass(frozen=True)
class Group:
    """The place of a step among the batches that make one optimizer step together."""

    first: bool  # gradients start from zero
    last: bool  # the optimizer steps
    weight: float  # this batch's share of the group's samples


ALONE = Group(first=True, last=True, weight=1.0)


def group_of(
    step: int,
    steps: int,
    accumulate: int,
    batch_sizes: list[int],
    of_all_ranks: list[int] | None = None,
    ranks: int = 1,
) -> Group:
    """step: in its phase of `steps`; batch_sizes: of each of them, on one rank.

    A phase's last group may be shorter. Weights are by samples, so that the sum of the
    group's gradients, averaged over ranks, is the gradient of the mean over all its samples.
    """
    begin = step - step % accumulate
    end = min(begin + accumulate, steps)
    total = sum((of_all_ranks or batch_sizes)[begin:end])
    return Group(step == begin, step == end - 1, ranks * batch_sizes[step] / total)
