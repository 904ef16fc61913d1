#!/usr/bin/env python3
"""Estimate what a recipe needs: memory of a GPU and hours; and write it into the head of its file.

    python tools/recipe_needs.py                     # print all of configs/photos and pretrain
    python tools/recipe_needs.py photos/dino --write
    python tools/recipe_needs.py photos/simclr config.MODEL.TRUNK.TIMM.model=convnext_tiny

A step of two images is made on torch's meta device, where tensors have shapes and no values: the
operations of matrices are counted, and the bytes that autograd keeps. docs/methods.md says how
estimates follow from these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # found as a script, too
from sslengine import catalog
from sslengine.command.doctor import SMALL_SET
from sslengine.config.components import owns_network
from sslengine.config.compose import shipped_configs
from sslengine.config.facts import world_size
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.data.batch.collators import FIELDS
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions
from sslengine.engine.build import attach, build_base_model, build_loss
from sslengine.engine.step import multi_input_sample, single_input_sample
from sslengine.methods import whole
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.models.model import Model
from sslengine.optim.options import OptimizerOptions

assert catalog  # importing it declares all names

META = torch.device("meta")
GIB = 2**30
# Bytes for each trained parameter: itself, its gradient, and what the optimizer keeps, in float32.
OF_OPTIMIZER = {"adamw": 16, "adam": 16}
OF_OTHERS, OF_TEACHER = 12, 4
# Kernels and fragments; activations in bfloat16, half of float32's.
CONTEXT, SLACK, HALF = 1.0, 1.2, 0.5
PER_SECOND = 60e12  # operations that an A100 does in a second: a fifth of its peak in bfloat16
LOOKED_AT = 2  # images
SOME, EPOCHS = 100_000, 100
# The images of a published recipe: their number, as text too, and the set.
IMAGENET = (1_281_167, "1.28 million images of ImageNet-1k")
OTHER_SETS = {
    "pretrain/lejepa/lejepa_1gpu_vits8": (9_469, "9,469 images of Imagenette"),
    "pretrain/nnclr/nnclr_2gpu_resnet18": (126_689, "126,689 images of ImageNet-100"),
    "pretrain/supcon/supcon_1gpu_resnet50": (50_000, "50,000 images of CIFAR-10"),
}
NEEDS = "Needs (estimates, docs/methods.md#what-a-recipe-needs): "
KINDS = ("photos", "pretrain")
# Without the network of the text, which is of any size: the caption is a vector.
INSTEAD = {"photos/clip": ("config.LOSS.vector_width=384",)}


@dataclass(frozen=True)
class Cost:
    flops: float  # of an image in a step: forward and backward, student and teacher
    kept: float  # bytes of an image that autograd keeps, in float32
    trained: int  # parameters
    teacher: int  # parameters and buffers that are not trained

    def memory(self, batch: int, optimizer: str) -> float:
        """GiB of each GPU."""
        fixed = OF_OPTIMIZER.get(optimizer, OF_OTHERS) * self.trained + OF_TEACHER * self.teacher
        return CONTEXT + SLACK * (fixed + HALF * batch * self.kept) / GIB

    def hours(self, images: float, gpus: int) -> float:
        return images * self.flops / (gpus * PER_SECOND) / 3600


class Kept:
    """The bytes of what autograd keeps: each tensor once, and no parameters."""

    def __init__(self, *modules: nn.Module) -> None:
        weights = [each for module in modules for each in module.parameters()]
        self._seen = {each.untyped_storage()._cdata for each in weights}
        self._alive: list[Tensor] = []
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata
        if place not in self._seen:
            self._seen.add(place)
            self._alive.append(tensor)  # or another would have its place
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


def cost_of(config: Any) -> Cost:
    with images_of(config) as data, META, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = tree_map(lambda each: each.to(META) if isinstance(each, Tensor) else each, data)
        model = build_base_model(config, META).train()
        method = nn.Module()
        if isinstance(model, Model):  # others compute their loss
            count = IMAGENET[0] if world_size(config) > 1 else SOME
            method = build_loss(config, model, count, META, [LOOKED_AT * world_size(config)])
            attach(config, method, model)
            method.train()
        kept, counter = Kept(model, method), FlopCounterMode(display=False)
        with counter:
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda each: each):
                loss = _loss(config, model, method, batch)
            _total(loss).backward()
    of_both = [*model.parameters(), *method.parameters()]
    trained = {each for each in of_both if each.requires_grad}
    others = {*of_both, *method.buffers()} - trained
    return Cost(
        counter.get_total_flops() / LOOKED_AT,
        kept.bytes / LOOKED_AT,
        sum(each.numel() for each in trained),
        sum(each.numel() for each in others),
    )


@contextmanager
def images_of(config: Any) -> Iterator[dict[str, Any]]:
    """A batch of the recipe's views of two images, of one class."""
    with tempfile.TemporaryDirectory() as folder:
        (inside := Path(folder) / "class").mkdir()
        draw = np.random.default_rng(0)
        for number in range(LOOKED_AT):
            pixels = draw.integers(0, 256, (300, 400, 3), np.uint8)
            Image.fromarray(pixels).save(inside / f"{number}.jpg")
        data = read(config, DataOptions)
        train = data.TRAIN
        train.DATA_SOURCES, train.DATA_PATHS = ["disk_folder"], [folder]
        train.BATCHSIZE_PER_REPLICA, train.DATASET_NAMES = LOOKED_AT, []
        data.NUM_DATALOADER_WORKERS, data.AUGMENT_BACKEND = 0, "pil"
        names, train.FIELDS = train.FIELDS, []
        feed = DataFeed(data, "TRAIN", training=True, seed=0)
        vectors = {name: [torch.zeros(LOOKED_AT, 384)] for name in names}
        yield {**next(iter(feed.batches())), **vectors, FIELDS: [tuple(names)]}
        feed.close()


def _loss(config: Any, model: nn.Module, method: nn.Module, batch: Any) -> Any:
    train, step = config.DATA.TRAIN, config.TRAINER.TRAIN_STEP_NAME
    build = multi_input_sample if "multi" in step or "pirl" in step else single_input_sample
    sample = build(batch, list(train.INPUT_KEY_NAMES), list(train.TARGET_KEY_NAMES))
    if owns_network(type(method)):
        return method(whole.Batch(sample), Step.alone())
    output = model(sample["input"])
    output = output[0] if isinstance(output, list) and len(output) == 1 else output
    if takes_sample(method):
        return method(output, sample, Step.alone())
    return method(output, sample["target"])


def _total(loss: Any) -> Tensor:
    parts = {"loss": loss} if isinstance(loss, Tensor) else loss
    return parts["loss"] if "loss" in parts else torch.stack([*parts.values()]).sum()


def needs(name: str, overrides: Sequence[str] = ()) -> str:
    """The sentence of a recipe's head."""
    changes = ("config.MACHINE.DEVICE=cpu", *INSTEAD.get(name, ()), *overrides)
    config = resolve([f"config={name}", *changes]).config
    cost, optimizer = cost_of(config), read(config, OptimizerOptions)
    batch, ranks = config.DATA.TRAIN.BATCHSIZE_PER_REPLICA, world_size(config)
    memory = f"{_rounded(cost.memory(batch, optimizer.name))} GiB"
    if not name.startswith("pretrain/"):
        hours = cost.hours(SOME * EPOCHS, 1)
        return (
            f"{memory} of GPU memory for {batch} images a step; {_rounded(hours)} h of an A100 for "
            f"{EPOCHS} epochs of {SOME:,} images; {SMALL_SET:,} images or more."
        )
    steps, (images, of_which) = optimizer.num_iterations, OTHER_SETS.get(name, IMAGENET)
    seen = steps * batch * ranks if steps else (optimizer.num_epochs or 0) * images
    time = f"{_rounded(cost.hours(seen, ranks))} h"
    if ranks == 1:
        return f"{memory} of GPU memory; {time} of an A100; the {of_which}."
    return f"{memory} of memory of each of {ranks} GPUs; {time} if they are A100; the {of_which}."


def _rounded(value: float) -> str:
    """To two digits."""
    return f"{float(f'{value:.2g}'):g}"


def head_with(text: str, sentence: str) -> str:
    """The file with this sentence at the end of its head, in place of the one that was there."""
    head, _, rest = text.partition("defaults:")
    lines = textwrap.wrap(NEEDS + sentence, 107, break_on_hyphens=False)
    made = "".join(f"# {line}\n" for line in lines)
    return f"{head.partition(f'# {NEEDS}')[0]}{made}defaults:{rest}"


def all_recipes() -> list[str]:
    root = shipped_configs()
    found = (path for kind in KINDS for path in sorted((root / kind).rglob("*.yaml")))
    return [path.relative_to(root).with_suffix("").as_posix() for path in found]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="and config.KEY=VALUE")
    parser.add_argument("--write", action="store_true", help="write it into the head of its file")
    given = parser.parse_args(arguments)
    overrides = [each for each in given.recipes if "=" in each]
    for name in [each for each in given.recipes if "=" not in each] or all_recipes():
        sentence = needs(name, overrides)
        print(f"{name}: {sentence}", flush=True)
        if given.write:
            file = shipped_configs() / f"{name}.yaml"
            file.write_text(head_with(file.read_text(), sentence))
    return 0


if __name__ == "__main__":
    sys.exit(main())
