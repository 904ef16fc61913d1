"""The step that is being made, for hooks to look at: `task.last_batch`, as in VISSL."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class LastBatch:
    __slots__ = ("indices", "loss", "model_output", "sample", "share", "size", "target",
                 "vis_masks", "vis_preds")  # fmt: skip

    def __init__(self) -> None:
        self.sample: dict[str, Any] = {}
        self.model_output: Any = None
        self.target: Any = None
        self.loss: Tensor | None = None  # this rank's; means over ranks are in the ledger
        self.indices: Tensor | None = None  # of the samples, on the host
        # A model's further outputs (model_train_step), for hooks that draw.
        self.vis_preds: Any = None
        self.vis_masks: Any = None
        self.size = 0  # images of this step, over all ranks
        self.share = 1.0  # of them, on this rank

    def begin(self, sample: dict[str, Any]) -> None:
        self.sample, self.target = sample, sample["target"]
        self.indices = sample.get("data_idx")
        self.vis_preds = self.vis_masks = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {shapes(each)}" for name, each in self.sample.items())


def shapes(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shapes, value[:12]))}]"
    return str(tuple(getattr(value, "shape", ())))
