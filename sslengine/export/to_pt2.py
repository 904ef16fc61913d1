"""`--to pt2`: the trunk as a program of torch.export. Its reader needs torch and nothing else."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.subject import Subject
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.read import first_line

LOAD = """import torch
model = torch.export.load("{folder}/model.pt2").module()
"""
_OTHER_SIZE = 32  # pixels more, for a network that takes images of any size


def prepare(subject: Subject, license: str) -> Made:
    program, free = trace_subject(subject)
    return Made(
        partial(_write, program),
        usage=LOAD + transform_code(subject),
        example=torch_example(subject),
        proofs=(Proof("torch", LOAD, "features = model(images)"),),
        facts={"input": f"float32 {list(subject.images.shape)}, normalised", "any_length": free},
    )


def _write(program: ExportedProgram, folder: Path) -> None:
    torch.export.save(program, folder / "model.pt2")


def trace_subject(subject: Subject) -> tuple[ExportedProgram, str]:
    """Trace the trunk, once for each subject: two formats are made of it."""
    if subject.program is None:
        subject.program = trace(TrunkFeatures(subject.trunk), subject.images, (2, 3))
    program: tuple[ExportedProgram, str] = subject.program
    return program


class TrunkFeatures(nn.Module):
    """N x channels x H x W, normalised, to N x dimensions."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, images: Tensor) -> Tensor:
        (feature,) = self.trunk(images)
        return cast(Tensor, feature).flatten(1)


class ByteFeatures(TrunkFeatures):
    """N x H x W x channels, uint8, as Pillow and numpy have them."""

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: Trunk, mean: list[float], std: list[float]) -> None:
        super().__init__(trunk)
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        scaled = images.permute(0, 3, 1, 2).float() / 255
        return super().forward((scaled - self.mean) / self.std)


def trace(
    network: TrunkFeatures, images: Tensor, axes: tuple[int, int]
) -> tuple[ExportedProgram, str]:
    """Return the program, and which axes of the images may have any length.

    axes: of height and width. They are free for a network of convolutions that takes another
    size, unless the compiler finds a length written into it.
    """
    batch = Dim("batch", min=1)
    # With a batch of one, torch would take the batch for a constant.
    example = images[:2]
    if not _has_attention(network) and _takes(network, example, axes):
        height, width = axes
        free = {0: batch, height: Dim.DYNAMIC, width: Dim.DYNAMIC}
        with suppress(ExportError):
            return _trace(network, example, free), "batch, height, width"
    return _trace(network, example, {0: batch}), "batch"


def _has_attention(network: nn.Module) -> bool:
    """Look for windows: with two lengths unknown, torch takes minutes for their attention."""
    return any("attn" in name or "patch_embed" in name for name, _ in network.named_modules())


@torch.no_grad()
def _takes(network: TrunkFeatures, images: Tensor, axes: tuple[int, int]) -> bool:
    shape = [n + _OTHER_SIZE if axis in axes else n for axis, n in enumerate(images.shape)]
    try:
        network(torch.zeros(shape, dtype=images.dtype))
    except Exception:  # libraries raise many kinds
        return False
    return True


def _trace(network: TrunkFeatures, images: Tensor, free: dict[int, object]) -> ExportedProgram:
    try:
        with torch.no_grad(), hide_attempts():
            return torch.export.export(network, (images,), dynamic_shapes=(free,), strict=False)
    except Exception as error:  # torch raises many kinds
        raise ExportError(f"torch.export cannot trace it: {first_line(error)}") from error


@contextmanager
def hide_attempts() -> Iterator[None]:
    """Hide what torch says of its attempts, and what its converters recommend."""
    loggers = [logging.getLogger(f"torch.{name}") for name in ("_dynamo", "export", "fx", "onnx")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
