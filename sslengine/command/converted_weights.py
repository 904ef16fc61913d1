"""Weights converted between sslengine, VISSL, torchvision and timm: nothing is written before the
outputs of the converted network equal those of the source."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors.torch import save_file
from torch import Tensor, nn

from sslengine import catalog  # noqa: F401 - declares all names
from sslengine.command.convert import OWN
from sslengine.command.networks import expect_known
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.errors import CheckpointError, ConfigError, DoesNotFitError, listing
from sslengine.export.twins import filled
from sslengine.models.build import build_model, trunk_with_heads
from sslengine.models.channels import RGB
from sslengine.models.model import Model
from sslengine.models.model_state import model_state, vissl_state
from sslengine.models.networks import AUTO, MODEL
from sslengine.models.options import ModelOptions, WeightsInitOptions
from sslengine.models.trunks.from_torchvision import without_classes
from sslengine.models.trunks.library_options import TorchvisionOptions
from sslengine.models.vissl_names import to_vissl
from sslengine.models.weights import COUNTERS, Loaded, expect_whole, init_from_file
from sslengine.trust import closed

# Rounding of float32 sums in another order; a wrong tensor differs by far more.
TOLERANCE = 1e-4


def load(options: ModelOptions, file: str, skip: Sequence[str]) -> tuple[Model, Loaded]:
    """The model with the file's weights, and the facts about the file."""
    weights = options.WEIGHTS_INIT
    options.WEIGHTS_INIT = WeightsInitOptions(
        PARAMS_FILE=file,
        NETWORK=weights.NETWORK,
        TRUST_PICKLE=weights.TRUST_PICKLE,
        SKIP_LAYERS=[*weights.SKIP_LAYERS, *skip],
    )
    model = trunk_with_heads(build_model(options), "to convert weights")
    loaded = init_from_file(model, options)
    expect_whole(loaded)
    if loaded.not_taken:
        names = listing(f"trunk.{name}" for name in loaded.not_taken)
        raise DoesNotFitError(f"{file}: not of this model: {names}.")
    return model.eval(), loaded


def _with_heads(loaded: Loaded) -> bool:
    return not any(name.startswith("heads.") for name in loaded.left_out)


def library_model(form: str, model: Model) -> nn.Module:
    """The model of `torchvision:resnet50`, with random weights and without its classifier; with
    the classifier's hidden layers if the trunk of `model` has them."""
    library, _, name = form.partition(":")
    try:
        if library == "timm":
            import timm

            channels = model.trunk.in_chans or RGB
            return timm.create_model(name, num_classes=0, in_chans=channels).eval()
        network, last = without_classes(TorchvisionOptions(name))
    except (ValueError, RuntimeError, KeyError, ConfigError) as error:
        raise CheckpointError(f"{form}: {library} makes no such model: {error}") from error
    classifier = last.partition(".")[0]
    if not any(each.startswith(f"{classifier}.") for each in model.trunk.state_dict()):
        network.set_submodule(classifier, nn.Identity())
    return network.eval()


def fill(library: nn.Module, model: Model, form: str) -> nn.Module:
    """Copy all tensors of the model's trunk into the library's model."""
    state = bare_state(model, library)
    own = library.state_dict()
    counters = {name: each for name, each in own.items() if name.endswith(COUNTERS)}
    return filled(library, {**counters, **state}, form)


# ---- verification


@torch.no_grad()
def equal_feature(model: Model, other: nn.Module, images: Tensor) -> tuple[str, float]:
    """The trunk's feature that the other model outputs, and the largest difference."""
    expected = other(images).flatten(1)
    if torch.equal(expected[0], expected[1]):
        raise CheckpointError(
            "the model has the same output for two images, so outputs cannot be compared."
        )
    names = model.trunk.feature_names
    differences = {
        name: (feature.flatten(1) - expected).abs().max().item()
        for name, feature in zip(names, model.trunk(images, names))
        if feature.numel() == expected.numel()
    }
    if not differences:
        raise CheckpointError(
            f"the other model gives {tuple(expected.shape)}, which is the shape of no feature of "
            f"this trunk ({listing(names)})."
        )
    name, difference = min(differences.items(), key=lambda item: item[1])
    if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise CheckpointError(
            f"the weights fit, and the outputs differ: by {difference:.3g} at the nearest feature, "
            f"{name}. Nothing was written. Is the config's model of the same architecture?"
        )
    return name, difference


@torch.no_grad()
def prove_reload(options: ModelOptions, model: Model, file: str, images: Tensor) -> str:
    """Load the file into a model with other weights: its outputs must be bit-equal."""
    again, _ = load(options, file, skip=())
    features = zip(model.trunk(images), again.trunk(images), strict=True)
    if not all(torch.equal(one, other) for one, other in features):
        raise CheckpointError("the outputs of the written file differ. Nothing was written.")
    return "outputs equal bit by bit after reading the file again"


def convert(options: argparse.Namespace) -> list[str]:
    """Convert; returns what was done, line by line."""
    for option, form in (("--to", options.to), ("--made-by", options.made_by)):
        if form and form not in OWN:
            library, _, name = form.partition(":")
            expect_known(library, name, option)
    run = open_named(options.config, options.config_dir, options.trust_config)
    with closed(run.opened):
        return _converted(options, run.config)


def _converted(options: argparse.Namespace, config: DictConfig) -> list[str]:
    def settings(heads: bool = True, network: str = AUTO) -> ModelOptions:
        chosen = read(config, ModelOptions)
        chosen.WEIGHTS_INIT.NETWORK = network
        chosen.WEIGHTS_INIT.TRUST_PICKLE = options.trust_pickle
        if not heads:
            chosen.HEAD.PARAMS, chosen.MULTI_INPUT_HEAD_MAPPING = [], []
        return chosen

    network = options.network
    model, loaded = load(settings(network=network), str(options.source), options.skip)
    heads = _with_heads(loaded)
    if not heads:
        model, _ = load(settings(False, network), str(options.source), options.skip)
    whose = "" if loaded.network == MODEL else f" of the {loaded.network}"
    kind = f" ({loaded.kind})" if loaded.kind else ""
    told = [f"{options.source}{kind}: the trunk{' and the heads' if heads else ' alone'}{whose}"]
    images = _images(model, options.image_size)
    if options.made_by:
        original = fill(library_model(options.made_by, model), model, options.made_by)
        told.append(_proof(options.made_by, *equal_feature(model, original, images)))
    unfinished = options.file.with_name(f".{options.file.name}.unfinished")
    try:
        if options.to in OWN:
            torch.save(own_state(model, options.to), unfinished)
            told.append(prove_reload(settings(heads), model, str(unfinished), images))
        else:
            library = fill(library_model(options.to, model), model, options.to)
            told.append(_proof(options.to, *equal_feature(model, library, images)))
            _write(library.state_dict(), unfinished, options.file.suffix)
        os.replace(unfinished, options.file)
    finally:
        unfinished.unlink(missing_ok=True)
    return [*told, f"{options.file}: written"]


@torch.no_grad()
def _images(model: Model, side: int) -> Tensor:
    channels = model.trunk.in_chans or RGB
    images = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))
    try:
        model.trunk(images)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"--image-size: the network takes no images of {side} pixels: {error}"
        ) from error
    return images


def _write(state: dict[str, Tensor], file: Path, suffix: str) -> None:
    if suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in state.items()}, file)
    else:
        torch.save(state, file)


def own_state(model: Model, form: str) -> dict[str, Any]:
    if form == "vissl":
        return vissl_state(model)
    return {"classy_state_dict": {"base_model": model_state(model)}}


def bare_state(model: Model, library: nn.Module) -> dict[str, Tensor]:
    """The trunk's tensors by the library's names: the trunk's own, or its second set."""
    wanted = library.state_dict().keys()
    return max(
        model.trunk.state_dict(),
        to_vissl(model.trunk),
        key=lambda names: len(names.keys() & wanted),
    )


def _proof(form: str, feature: str, difference: float) -> str:
    return f"{form}: outputs equal the feature {feature!r}, largest difference {difference:.2g}"
