#!/usr/bin/env python3
"""Crops of two sizes through one transformer: apart, as the engine does, or as packed tokens.

    python tools/perf_measurement/bench_packed.py              # timm's ViT-S/16
    python tools/perf_measurement/bench_packed.py --images 32 --device cuda --bf16

apart: a forward pass for each size. packed: the tokens of all crops in one matrix for norms and
linear maps; attention for each size. nested: packed, and one attention over sequences of unlike
length (torch's jagged layout), which is slow on a CPU and left out there unless it is named. Each
is a forward and a backward pass in training, without dropped paths; ways take turns, and the
median of the rounds counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

# Of DINO's recipes: two global crops and eight local ones of an image, in pixels.
CROPS = ((2, 224), (8, 96))
# (queries, keys, values of packed tokens: tokens x heads x width; shapes of the crops) -> tokens
Attend = Callable[[Tensor, Sequence[torch.Size]], Tensor]


def apart(trunk: nn.Module, crops: Sequence[Tensor]) -> list[Tensor]:
    return [trunk(each) for each in crops]


def packed(attend: Attend, trunk: nn.Module, crops: Sequence[Tensor]) -> list[Tensor]:
    """As `apart`, of timm's VisionTransformer with a class token as its feature."""
    tokens = [trunk.norm_pre(trunk._pos_embed(trunk.patch_embed(each))) for each in crops]
    shapes = [each.shape for each in tokens]
    rows = torch.cat([each.flatten(0, 1) for each in tokens])
    for block in trunk.blocks:
        layer = block.attn
        one = layer.qkv(block.norm1(rows)).unflatten(1, (3, layer.num_heads, -1))
        rows = rows + block.ls1(layer.proj(attend(one, shapes)))
        rows = rows + block.ls2(block.mlp(block.norm2(rows)))
    rows = trunk.norm(rows)
    return [each.view(shape)[:, 0] for each, shape in zip(_split(rows, shapes), shapes)]


def by_size(one: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
    answers = []
    for each, shape in zip(_split(one, shapes), shapes):
        query, key, value = each.unflatten(0, shape[:2]).permute(2, 0, 3, 1, 4)
        answer = scaled_dot_product_attention(query, key, value)
        answers.append(answer.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat(answers)


def jagged(one: Tensor, shapes: Sequence[torch.Size]) -> Tensor:
    lengths = torch.cat([torch.full((shape[0],), shape[1]) for shape in shapes])
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(one.device)
    longest, shortest = int(lengths.max()), int(lengths.min())
    query, key, value = (
        torch.nested.nested_tensor_from_jagged(
            each.contiguous(), offsets, min_seqlen=shortest, max_seqlen=longest
        ).transpose(1, 2)
        for each in one.unbind(1)
    )
    return scaled_dot_product_attention(query, key, value).transpose(1, 2).values().flatten(1)


def _split(rows: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
    return rows.split([shape[0] * shape[1] for shape in shapes])


WAYS: dict[str, Callable[[nn.Module, Sequence[Tensor]], list[Tensor]]] = {
    "apart": apart,
    "packed": partial(packed, by_size),
    "nested": partial(packed, jagged),
}


def step(way: str, trunk: nn.Module, crops: Sequence[Tensor], bf16: bool) -> float:
    """Seconds of a forward and a backward pass."""
    trunk.zero_grad()
    wait = torch.cuda.synchronize if crops[0].is_cuda else lambda: None
    wait()
    began = time.perf_counter()
    with torch.autocast(crops[0].device.type, torch.bfloat16, enabled=bf16):
        features = WAYS[way](trunk, crops)
    torch.cat(features).square().mean().backward()  # type: ignore[no-untyped-call]
    wait()
    return time.perf_counter() - began


def measure(given: argparse.Namespace) -> dict[str, list[float]]:
    torch.set_num_threads(given.threads)
    trunk = timm.create_model(given.model, num_classes=0, dynamic_img_size=True)
    trunk = trunk.to(given.device).train()
    crops = [
        torch.randn(count * given.images, 3, side, side, device=given.device)
        for count, side in CROPS
    ]
    found: dict[str, list[float]] = {way: [] for way in given.ways}
    for number in range(given.rounds + 1):
        for way, seconds in found.items():
            taken = step(way, trunk, crops, given.bf16)
            if number:  # the first one allocates
                seconds.append(taken)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="vit_small_patch16_224", help="of timm's (%(default)s)")
    add("--images", type=int, default=4, help="of a step (%(default)s)")
    add("--rounds", type=int, default=5, help="(%(default)s)")
    add("--threads", type=int, default=1, help="of a CPU (%(default)s)")
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--bf16", action="store_true", help="under autocast")
    add("--ways", nargs="+", choices=WAYS)
    given = parser.parse_args(arguments)
    given.ways = given.ways or [*WAYS][: 2 if given.device == "cpu" else 3]
    found = measure(given)
    first = statistics.median(next(iter(found.values())))
    print(f"{'':10}{'ms':>9}{'from':>9}{'to':>9}{'ratio':>8}")
    for way, seconds in found.items():
        middle, *ends = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{way:10}" + "".join(f"{1000 * each:9.1f}" for each in (middle, *ends))
              + f"{middle / first:8.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
