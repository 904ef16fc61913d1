"""Methods that are objects: the trunk that one is made with, and the config of its run.

    method = SimCLR(sslengine.trunk("resnet50"), temperature=0.2)

The config is that of `sslengine train --method FILE.py:SimCLR --model resnet50`, with the arguments
of the object: judging, exporting and resuming read it as any other. A class that no other process
could import (of a notebook) is named `__main__:SimCLR`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import nn

from sslengine.command import networks
from sslengine.command import train as verb
from sslengine.command.arguments import collect
from sslengine.config.components import owns_network
from sslengine.config.resolve import Resolved, resolve_dict, settled
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import world_size
from sslengine.dotted import nest
from sslengine.errors import ConfigError
from sslengine.launch import cli
from sslengine.methods.teacher import Teacher
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.models.view_trunk import ViewTrunk, lend
from sslengine.models.weights.load import init_weights
from sslengine.python.files import open_data
from sslengine.registry import LOSSES

log = logging.getLogger("sslengine")

PRETRAINED, CHANNELS = ".pretrained", "MODEL.INPUT_CHANNELS"
GIVES_LOSSES = {"LOSS.name": "", "TRAINER.TRAIN_STEP_NAME": "loss_dict_train_step"}
_VIEWS = {f"DATA.{split}.COLLATE_FUNCTION": "multicrop_collator" for split in ("TRAIN", "TEST")}
_PLAIN = (bool, int, float, str)


def trunk(
    name: str = "resnet50", *, size: int | None = None, channels: int = 3, pretrained: bool = False
) -> ViewTrunk:
    """Build a network for a method, with random weights from torch's random stream.

    name: as `sslengine train --model`: a network of timm or torchvision, or a trunk.
    size: the side of the largest view; default: 224, or that of the recipe.
    pretrained: start from the weights that timm or torchvision has.
    """
    keys = networks.find(name).keys(size or networks.SIDE, many_views=True, pretrained=pretrained)
    keys |= {CHANNELS: channels}
    options = read(resolve_dict(nest(keys)).config, ModelOptions)
    model: Any = build_model(options)
    if pretrained:
        init_weights(model, options)
    made = lend(model, options)
    made.trunk, made.name, made.size = model.trunk, name, size
    made.keys = {key: each for key, each in keys.items() if not key.endswith(PRETRAINED)}
    return made


def find_view_trunk(module: nn.Module) -> ViewTrunk | None:
    """Return the trunk that the module was made with; None: it has none. A copy is a teacher's."""
    copies = {
        each for part in module.modules() if isinstance(part, Teacher) for each in part.modules()
    }
    found = (each for each in module.modules() if isinstance(each, ViewTrunk) and each.keys)
    return next((each for each in found if each not in copies), None)


def keys_of_method(method: nn.Module, made_with: ViewTrunk) -> dict[str, Any]:
    """Return the keys that name the method, its arguments and its network."""
    keys = {**made_with.keys, "MODEL.HEAD.PARAMS": []}
    kind = type(method)
    if not owns_network(kind):
        return {**keys, **GIVES_LOSSES, **_VIEWS}
    name, module = kind.__name__, sys.modules.get(kind.__module__)
    if getattr(module, name, None) is kind:
        name = f"{kind.__module__}:{name}"
    else:  # of a function, or of a cell that ran again
        name = f"__main__:{name}"
        LOSSES.adopt("__main__", {name: kind})
    return {**keys, "LOSS.name": name, **{f"LOSS.{key}": each for key, each in _arguments(method)}}


def _arguments(method: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what it was made with that a config can say."""
    for name, value in getattr(method, "made_with", {}).items():
        each = value if isinstance(value, list | tuple) else (value,)
        if all(isinstance(one, _PLAIN) for one in each):
            yield name, value


def resolve_of_images(asked: Any, keys: dict[str, Any], opened: ExitStack) -> Resolved:
    """Resolve the run as `sslengine train` does. asked: the arguments of `fit`."""
    of_samples = not asked.shuffle or asked.drop_last or asked.collate_fn is not None
    share = asked.validation is None or isinstance(asked.validation, float)
    if of_samples or not share or (asked.epochs and asked.iterations):
        raise ConfigError(
            "fit: of images the recipe says how they are read: shuffle, drop_last and collate_fn "
            "belong to samples, `validation` is a share of the images, such as 0.1, and the length "
            "is epochs=... or iterations=...."
        )
    if asked.iterations:
        keys["OPTIMIZER.num_iterations"] = asked.iterations
    files = opened.enter_context(open_data(asked.data))
    of_train = {
        **vars(asked), "data": files.images, "model": asked.made_with.name, "val": asked.validation,
        "size": asked.made_with.size, "device": asked.place,
        "gpus": world_size() if asked.place == "gpu" else None,
        "values": {**files.values, **keys, **(asked.values or {})},
    }  # fmt: skip
    arguments, line = verb.choose(collect(verb.ARGUMENTS, of_train), files.labels)
    log.info("%s", line)
    resolved = replace(cli.settled(arguments, ())[0], arguments=())
    if asked.evaluate_every is not None:
        labelled = read(resolved.config, DataOptions).TRAIN.LABEL_SOURCES
        what = ["knn", "label_free"] if labelled else ["label_free"]
        for key, value in (("EVERY", asked.evaluate_every), ("WHAT", what)):
            resolved = settled(resolved, f"HOOKS.ONLINE_EVAL.{key}", value, "evaluate_every")
    return resolved
