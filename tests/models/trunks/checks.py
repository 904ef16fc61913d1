"""What must hold for every trunk; each trunk's own test calls these."""

from __future__ import annotations

import copy
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from sslengine import catalog  # noqa: F401 - declares the sections
from sslengine.config.sections import schema
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import Trunk
from sslengine.models.weights.names import read_vissl, write_vissl


def options(*trees: dict[str, Any]) -> ModelOptions:
    """Read the section MODEL of a YAML file."""
    node = schema().MODEL
    for each in (node, node.TRUNK):
        OmegaConf.set_struct(each, False)
    made = OmegaConf.to_object(OmegaConf.merge(node, *trees))
    assert isinstance(made, ModelOptions)
    return made


def features(trunk: Trunk, size: tuple[int, int]) -> dict[str, Tensor]:
    """All features, which must be as many as there are names; the last is the default."""
    x = torch.randn(2, 3, *size, dtype=next(trunk.parameters()).dtype)
    with torch.no_grad():
        found = trunk.eval()(x, trunk.feature_names)
        assert len(found) == len(set(trunk.feature_names))
        for name, feature in zip(trunk.feature_names, found, strict=True):
            torch.testing.assert_close(trunk(x, [name])[0], feature)
        torch.testing.assert_close(trunk(x)[0], found[-1])
    return dict(zip(trunk.feature_names, found, strict=True))


TWO_SIZES = ((32, 32), (64, 32))


def checkpointing_changes_nothing(
    trunk: Trunk, sizes: tuple[tuple[int, int], ...] = TWO_SIZES
) -> None:
    """Neither gradients nor running statistics, dropout and crops of two sizes included."""
    plain = trunk.double().train()
    recomputing = copy.deepcopy(plain)
    recomputing.checkpoint_activations()
    crops = [torch.randn(3, 3, *size, dtype=torch.float64) for size in sizes]
    names = plain.feature_names[-2:]
    grads = []
    for each in (plain, recomputing):
        torch.manual_seed(7)
        found = [feature for crop in crops for feature in each(crop, names)]
        sum(feature.square().mean() for feature in found).backward()
        grads.append([parameter.grad for parameter in each.parameters()])
    assert any(grad is not None and grad.abs().sum() > 0 for grad in grads[0])
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(recomputing.get_buffer(name), buffer)


def recomputes(trunk: Trunk, module: torch.nn.Module, size: tuple[int, int] = (32, 32)) -> bool:
    """Tell whether `module` runs a second time in the backward pass, and once without gradients."""
    runs: list[int] = []
    module.register_forward_hook(lambda *_: runs.append(1))
    trunk(torch.randn(2, 3, *size))[0].sum().backward()
    return len(runs) == 2


def names_round_trip(trunk: Trunk) -> None:
    theirs, ours = write_vissl(trunk), trunk.state_dict()
    back = read_vissl(trunk, theirs)
    assert back.keys() == ours.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in ours.items())
    assert read_vissl(trunk, ours) == ours
