from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from sslengine.config.sections import read
from sslengine.models.build import build_model
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.parts import blocks_of, heads_of, parts_of
from tests.config.recipes import resolved
from tests.integration.test_sharded import TRUNKS


def _model(trunk: dict[str, Any], heads: list[Any] | None = None) -> Model:
    changes = {"MODEL__TRUNK": trunk} if trunk else {}
    heads = [["mlp", {"dims": [32, 8]}]] if heads is None else heads
    return build_model(read(resolved(**changes, MODEL__HEAD__PARAMS=heads).config, ModelOptions))


@pytest.mark.parametrize(
    ("trunk", "blocks"),
    [("resnet", 8), ("regnet", 3), ("convnext", 4), ("xcit", 4), ("swin", 2), ("convit", 2),
     ("efficientnet", 16), ("beit", 2), ("mobilenet", 17), ("mobilenetv3_timm", 16)],
)  # fmt: skip
def test_the_blocks_of_each_trunk(trunk: str, blocks: int) -> None:
    """They are most of it, and no two of them share anything."""
    whole = _model(TRUNKS.get(trunk, {"NAME": trunk})).trunk
    found = list(blocks_of(whole))
    assert len(found) == blocks
    inside = [id(each) for block in found for each in block.parameters()]
    assert len(inside) == len(set(inside))
    assert sum(p.numel() for b in found for p in b.parameters()) > 0.25 * sum(
        p.numel() for p in whole.parameters()
    )


def test_inner_parts_come_first() -> None:
    model = _model({})
    parts = parts_of(model)
    assert parts[-2:] == [model.trunk, model.heads[0]]
    assert parts[:-2] == list(blocks_of(model.trunk))


def test_small_blocks_stay_with_the_trunk() -> None:
    model = _model({})
    sizes = [sum(p.numel() for p in block.parameters()) for block in blocks_of(model.trunk)]
    parts = parts_of(model, smallest_block=max(sizes))
    assert len(parts) == 2 + sizes.count(max(sizes))
    assert parts_of(model, smallest_block=1 + max(sizes)) == [model.trunk, model.heads[0]]


def test_each_module_of_a_chain_is_a_part_and_one_without_weights_is_none() -> None:
    chain = [[["mlp", {"dims": [32, 8]}], ["mlp", {"dims": [8, 4]}]]]
    model = _model({}, chain)
    assert list(heads_of(model)) == list(model.heads[0].children())
    model.heads.append(nn.Identity())
    assert not any(isinstance(each, nn.Identity) for each in parts_of(model))
