"""A trained network that a method reads and never trains, such as the teacher of distillation.

    self.teacher = FrozenNetwork(options.teacher, where, heads=False)  # in the method's __init__
    self.teacher.load(model)                                           # in its `attach`
    features = self.teacher(images, step)                              # in its forward

    teacher:
      weights: runs/quickstart/simclr    # a run: its network, with its newest weights
    teacher:
      timm: vit_base_patch16_224         # a network of timm's, with timm's pretrained weights,
      weights: /weights/vitb16.pth       # or with those of a file

It is in eval mode and has no gradients; images reach it as they reach the model. A checkpoint has
the SHA-256 of its weights in place of the weights: a run is resumed with the same teacher only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.ranges import choice
from sslengine.config.run_folder import open_run
from sslengine.config.sections import read
from sslengine.errors import CheckpointError, ConfigError, SSLEngineError
from sslengine.models.build import build_model, trunk_with_heads
from sslengine.models.model import Model
from sslengine.models.momentum import frozen_copy
from sslengine.models.options import (
    LoraOptions,
    ModelOptions,
    SyncBatchNormOptions,
    TrunkOptions,
    WeightsInitOptions,
)
from sslengine.models.trunks.base import dense_feature
from sslengine.models.trunks.library_options import TimmOptions
from sslengine.models.view_trunk import ViewTrunk
from sslengine.models.weights import CHOICES
from sslengine.models.weights.fit import RGB
from sslengine.models.weights.load import TO_ADAPT, init_weights
from sslengine.models.weights.read import TO_TRUST, WHERE
from sslengine.trust import closed

HASH, PATCHES = "sha256", "patches"


@dataclass
class FrozenOptions:
    # The folder of a run, or a file of weights as in MODEL.WEIGHTS_INIT; empty: those of timm.
    weights: str = ""
    # timm's name of the network; empty: that of the run.
    timm: str = ""
    # Arguments of timm's function: {dynamic_img_size: true} for a ViT and images of another size.
    # null: that argument of an earlier file is not given.
    arguments: dict[str, Any] = field(default_factory=dict)
    # If the checkpoint's method has a teacher: student, teacher, or auto: the one that it chooses.
    network: str = choice(*CHOICES)

    def __post_init__(self) -> None:
        self.weights = os.path.expanduser(self.weights)

    def check(self) -> Iterator[str]:
        if self.given() and not self.timm:
            unset = ", ".join(f"arguments.{name}=null" for name in self.given())
            yield (
                f"timm: `arguments` is set, but no network is named. Name one; or, for the network "
                f"of a run, set {unset}."
            )

    def check_chosen(self) -> Iterator[str]:
        for problem in TimmOptions(self.timm).check_chosen():
            yield problem.replace("model:", "timm:", 1)

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in self.arguments.items() if value is not None}


class FrozenNetwork(nn.Module):
    network: Model

    def __init__(
        self, options: FrozenOptions, where: str, heads: bool = False, features: Sequence[str] = ()
    ) -> None:
        """Make it without a network: see `load`.

        where: the key path of the options.
        heads: its output is that of its first input's heads, of several features (class token,
            patches) that of the first; else that of the trunk.
        features: of the trunk; none, or an empty name: the final one; `patches`: the last map, or
            patch tokens.
        """
        super().__init__()
        self.options, self.where, self.heads, self.features = options, where, heads, features
        self.register_buffer(HASH, torch.zeros(32, dtype=torch.uint8))

    def load(self, model: nn.Module, weights: bool = True) -> None:
        """Build it and load its weights, once. model: that of the run, for images of its channels.

        weights: false: a checkpoint will give them, a file of weights is not read.
        On the meta device, before a launch, weights are not read.
        """
        if hasattr(self, "network"):
            return
        channels = getattr(getattr(model, "trunk", None), "in_chans", None) or RGB
        hashed: Tensor = getattr(self, HASH)
        with torch.random.fork_rng(devices=[]):
            network = self._build(channels, weights, read_weights=weights and not hashed.is_meta)
        if not hashed.is_meta:
            hashed.copy_(torch.tensor([*digest(network)], dtype=torch.uint8))
        self.network = network.requires_grad_(False).to(hashed.device)
        self.train()

    def train(self, mode: bool = True) -> FrozenNetwork:
        super().train(False)
        return self

    @torch.no_grad()
    def forward(self, images: Any, step: Any) -> Any:
        """step: that of the method; its precision is the teacher's too."""
        with step.autocast():
            output = self.network(images)
        if isinstance(output, list) and len(output) == 1:
            output = output[0]
        return step.full(output)

    def _build(self, channels: int, needed: bool, read_weights: bool) -> Model:
        if not (self.options.weights or self.options.timm):
            raise ConfigError(
                f"{self.where}.weights: expected the folder of a trained run, or a file of weights "
                f"and {self.where}.timm, the name of their network."
            )
        folder = Path(self.options.weights)
        if needed and self.options.weights and not folder.exists():
            raise ConfigError(
                f"{self.where}.weights: there is no file or folder {folder.absolute()}. If it was "
                f"moved, set this key to its place."
            )
        try:
            if self.options.timm:
                return self._build_timm(channels, read_weights)
            return self._open_run(folder, channels, read_weights)
        except SSLEngineError as error:
            text = str(error).replace(f"{WHERE}.PARAMS_FILE", "weights")
            for advice in (TO_TRUST, TO_ADAPT):  # of keys that a teacher has not
                text = text.replace(advice, "")
            raise type(error)(f"{self.where}: {text}") from error

    def _open_run(self, folder: Path, channels: int, read_weights: bool) -> Model:
        if not (folder / "config.yaml").is_file():
            raise ConfigError(
                f"weights: {folder} is not the folder of a run, so its network is not known. Set "
                f"{self.where}.timm to its name."
            )
        resolved = open_run(folder, judged=True)
        options = read(resolved.config, ModelOptions)
        taken = options.in_chans()
        if taken != channels:
            raise ConfigError(
                f"weights: {folder} was trained on images of {taken} channels, and those of this "
                f"run have {channels}. Set it to a run on images of {channels} channels."
            )
        with closed(resolved.opened):
            return self._fill(options, read_weights)

    def _build_timm(self, channels: int, read_weights: bool) -> Model:
        network = TimmOptions(self.options.timm, self.options.given())
        for problem in network.check_chosen():
            raise ConfigError(problem)
        network.pretrained = not self.options.weights
        trunk = TrunkOptions(NAME="timm", TIMM=network)
        return self._fill(ModelOptions(TRUNK=trunk, INPUT_CHANNELS=channels), read_weights)

    def _fill(self, options: ModelOptions, read_weights: bool) -> Model:
        """Build the network with its weights; remove all routes but the first."""
        # Of timm's networks: a file is adapted to other channels as timm adapts its own weights.
        weights = WeightsInitOptions(
            self.options.weights, NETWORK=self.options.network, ADAPT_INPUT_CHANNELS=True
        )
        options = replace(
            options, WEIGHTS_INIT=weights, SYNC_BN_CONFIG=SyncBatchNormOptions(), LORA=LoraOptions()
        )
        network = build_model(options)
        if not isinstance(network, Model):
            raise ConfigError(f"weights: {type(network).__name__} is not a trunk with heads.")
        if self.heads and not network.heads:
            raise ConfigError("weights: this network has no heads, whose scores are needed.")
        missing = init_weights(network, options).left_out if read_weights else ()
        if self.heads and missing:
            raise CheckpointError(f"weights: the file lacks tensors of the heads: {missing[0]}.")
        route = replace(network.routes[0], key="", additional_keys=())
        if self.heads and not route.chained and len(route.features) > 1:  # each with its own head
            route = replace(route, features=route.features[:1], heads=route.heads[:1])
        if not self.heads:
            network.heads = nn.ModuleList()
            last, dense = network.trunk.feature_names[-1], dense_feature(network.trunk)
            names = tuple({"": last, PATCHES: dense}.get(each, each) for each in self.features)
            route = replace(route, features=names, heads=())
        trunk: Any = network.trunk
        trunk.check_features(route.features, f"{self.where}: its trunk")
        trunk.section = self.where  # that errors name
        network.routes, network.pooling = (route,), network.pooling if self.heads else None
        return network

    # ---- in checkpoints

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the hash alone."""
        prefix, destination = named.get("prefix", ""), named.get("destination")
        kept = {} if destination is None else destination
        kept[f"{prefix}{HASH}"] = getattr(self, HASH).detach()
        return kept

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *others: Any
    ) -> None:  # called for each module by torch's load_state_dict
        given, own = state_dict.get(f"{prefix}{HASH}"), getattr(self, HASH)
        if given is not None and not torch.equal(given.cpu(), own.cpu()):
            raise CheckpointError(
                f"{self.where}.weights: {self.options.weights or self.options.timm} has other "
                f"weights than the teacher of the run that wrote the checkpoint: SHA-256 "
                f"{_hex(own)} instead of {_hex(given)}."
            )
        if hasattr(self, "network"):  # torch looks for the tensors of submodules next
            state_dict.update(self.network.state_dict(prefix=f"{prefix}network."))


def digest(module: nn.Module) -> bytes:
    """Return the SHA-256 of the names and bytes of all tensors in the state dict."""
    found = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.digest()


def _hex(hashed: Tensor) -> str:
    return bytes(hashed.tolist()).hex()[:12]


# ---- the trunk's own start


class Preservation(nn.Module):
    """A part of the loss: the trunk's features stay near those of its start (`MODEL.PRESERVE`).

        loss <- loss + WEIGHT * mean over images x of 1 - cos(f(x), f0(x))

    f0 is a frozen copy of the trunk f as it was when the run began: with the weights that it starts
    from. cos is of the final features of each image's first view; with features of length 1,
    1 - cos is half of their squared distance. So the gradient is 0 at first (f = f0, without
    dropout and batch norms), and grows with the distance. Cost: one more pass of the trunk over one
    view of each image, forward and backward, and one of the copy, forward. Checkpoints hold the
    copy: a run resumes by it.
    """

    start: ViewTrunk

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.scale = weight

    def attach(self, model: nn.Module) -> None:
        trunk = ViewTrunk(trunk_with_heads(model, "config.MODEL.PRESERVE"), 0)
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule
        self.start = frozen_copy(trunk).eval()

    def train(self, mode: bool = True) -> Preservation:
        return super().train(False)

    def forward(self, loss: Any, inputs: Any, images: int, step: Any) -> Any:
        """Add the term to the loss, a number or a dict of numbers. images: of this rank."""
        views = [_first_tensor(inputs)[:images]]
        (trunk,) = self._trunk
        with step.autocast():
            now, before = trunk(views), self.start(views)
        term = 1.0 - F.cosine_similarity(step.full(now), step.full(before), dim=-1).mean()
        losses = dict(loss) if isinstance(loss, Mapping) else {"loss": loss}
        return losses | {"loss": losses["loss"] + self.scale * term, "preservation": term}


def _first_tensor(inputs: Any) -> Tensor:
    """Return the first views: of the first input, if they are several; of images in rows, all."""
    while not isinstance(inputs, Tensor):
        inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs))
    return inputs
