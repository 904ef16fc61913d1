from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size
from sslengine.methods.base import Method, Step
from sslengine.registry import LOSSES, register_loss
from sslengine.trainer import loop
from tests.ranks import RankPool
from tests.registries import as_before
from tests.task.runs import make_task


class _Centred(Method):
    """Of its buffers `own_centre` is that of one rank; the others are equal, or may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        for name in ("own_centre", "centre", "rows"):
            self.register_buffer(name, torch.zeros(() if name == "rows" else 8))
        self.register_buffer("last", torch.zeros(8), persistent=False)

    def forward(self, output: Tensor, sample: dict[str, Any], step: Step) -> Tensor:
        mean = output.detach().mean(dim=0)
        self.own_centre.lerp_(mean, 0.1)
        self.last.copy_(mean)
        self.centre.lerp_(sum_over_ranks(mean) / world_size(), 0.1)
        self.rows += len(output)
        return (self.norm(output) - self.centre).square().mean()


def _warnings(folder: Path) -> list[str]:
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("sslengine")
    log.addHandler(handler)
    try:
        with as_before(LOSSES):
            register_loss("centred")(_Centred)
            loop.run(make_task(folder, [], LOSS={"name": "centred"}))
    finally:
        log.removeHandler(handler)
    return [each for each in said if "differ between ranks" in each]


def test_a_buffer_of_one_ranks_images_is_named_once(tmp_path: Path, two_ranks: RankPool) -> None:
    for said in two_ranks.run(_warnings, tmp_path):
        (text,) = said
        assert text.startswith("_Centred: the buffers own_centre differ between ranks.")
    assert _warnings(tmp_path / "alone") == []
