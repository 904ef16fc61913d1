"""`TRUNK.NAME: torchvision`: any classification network of torchvision, by torchvision's name.

<submodules>    the network's parts and blocks by torchvision's names (layer1, features.3)
flatten         the input of the last layer, which has the classes: the final feature

The output of any other submodule can be requested too, see library.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
import torchvision
from torch import Tensor, nn

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import (
    FINAL,
    ByName,
    Design,
    Feature,
    adopt,
    rows_of_blocks,
    take_channels,
)
from sslengine.models.trunks.library_options import TorchvisionOptions
from sslengine.registry import register_trunk

WHERE = "config.MODEL.TRUNK.TORCHVISION"
# A number of classes that identifies the last layer: no other layer has as many outputs.
MARK = 7919


class TorchvisionTrunk(ByName):
    section = WHERE
    options: TorchvisionOptions
    # The name of the first convolution's weights.
    first_weight: str

    def present_name(self, name: str) -> str:
        """Return today's name: torchvision's DenseNet files have older names."""
        return re.sub(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)", r"\1\2", name)

    def library_weights(self, in_chans: int) -> dict[str, Tensor]:
        """Return torchvision's pretrained weights; torchvision may download them."""
        whole = _make(self.options, weights="DEFAULT")
        state = {
            n: each for n, each in whole.state_dict().items() if not n.startswith(self.left_out)
        }
        if in_chans != 3:
            from timm.models import adapt_input_conv  # the import takes a second

            state[self.first_weight] = adapt_input_conv(in_chans, state[self.first_weight])
        return state


@register_trunk("torchvision", options=TorchvisionOptions)
def torchvision_trunk(options: TorchvisionOptions, in_chans: int = 3) -> TorchvisionTrunk:
    network, last = remove_classes(options)
    if options.pretrained and in_chans == 3 and "transform_input" not in options.arguments:
        # GoogLeNet's and Inception's weights were trained with this setting.
        cast(Any, network).transform_input = True
    first = next(name for name, each in network.named_modules() if isinstance(each, nn.Conv2d))
    conv = network.get_submodule(first)
    network.set_submodule(first, take_channels(conv, in_chans, _spread_like(conv)))
    table = {name: Feature((name,)) for name in _names(network, last) if name != FINAL}
    final = Feature(("",), lambda trunk, given, x: given[0].flatten(1))
    trunk = adopt(network, TorchvisionTrunk, {**table, FINAL: final})
    trunk.block_names = rows_of_blocks(network)
    trunk.options, trunk.first_weight = options, f"{first}.weight"
    trunk.left_out = (f"{last}.", "aux1.", "aux2.", "AuxLogits.")
    arguments = {**options.arguments, **_more_arguments(options)}
    timm = f"arguments {options.arguments}" if options.arguments else Design(options.model)
    trunk.designs = {"torchvision": Design(options.model, arguments, last=last), "timm": timm}
    return trunk


def remove_classes(options: TorchvisionOptions) -> tuple[nn.Module, str]:
    """The network without its last layer, and the name of that layer."""
    network = _make(options, num_classes=MARK)
    (last,) = (name for name, each in network.named_modules() if _has_classes(each))
    network.set_submodule(last, nn.Identity())
    return network, last


def _make(options: TorchvisionOptions, **more: Any) -> nn.Module:
    options.expect_valid(WHERE)
    make = partial(torchvision.models.get_model, options.model)  # type: ignore[attr-defined]
    more |= {} if "weights" in more else _more_arguments(options)
    try:
        try:
            return make(**{**options.arguments, **more})
        except NotImplementedError:  # its __init__ computes with tensors, not possible on meta
            with torch.device("cpu"):
                made = make(**{**options.arguments, **more})
            return made.to("meta")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{WHERE}.arguments: torchvision cannot make {options.model} of {options.arguments}: "
            f"{error}"
        ) from error


def _more_arguments(options: TorchvisionOptions) -> dict[str, Any]:
    """Return those of networks with auxiliary classifiers."""
    auxiliary = options.model in ("googlenet", "inception_v3")
    return {"aux_logits": False, "init_weights": True} if auxiliary else {}


def _has_classes(layer: nn.Module) -> bool:
    return MARK in (getattr(layer, "out_features", 0), getattr(layer, "out_channels", 0))


def _names(network: nn.Module, last: str) -> Iterator[str]:
    """Yield the names of children, of the modules in a child that is a list, and of blocks.

    The module that contains the classifier is excluded.
    """
    blocks = re.compile(rows_of_blocks(network) or "(?!)")
    for name, module in network.named_modules():
        first, _, second = name.partition(".")
        if not name or first == last.partition(".")[0] or isinstance(module, nn.ModuleList):
            continue
        in_a_row = isinstance(network.get_submodule(first), (nn.Sequential, nn.ModuleList))
        if not second or ("." not in second and in_a_row) or blocks.fullmatch(name):
            yield name


def _spread_like(layer: nn.Module) -> Any:
    """Draw weights for other channels, so that outputs have the variance that RGB images give."""
    weight = cast(Tensor, layer.weight).detach()

    def draw(made: Tensor) -> Tensor:
        spread = float(weight.std()) if weight.device.type != "meta" else 0.0
        return nn.init.normal_(made, std=spread * math.sqrt(3 / made.shape[1]))

    return draw
