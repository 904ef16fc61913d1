"""Convert weights between sslengine, VISSL, torchvision and timm, and verify the outputs.

    # A run of sslengine or VISSL into torchvision's ResNet-50, without its classifier
    sslengine convert config=pretrain/simclr/simclr_8gpu_resnet50 \\
        --from checkpoint.torch --to torchvision:resnet50 --out resnet50.pth

    # timm's weights into a file that VISSL reads (and config.MODEL.WEIGHTS_INIT here)
    sslengine convert config=pretrain/dino/dino_16gpu_vits16 \\
        --from deit_small.pth --made-by timm:vit_small_patch16_224 --skip head. \\
        --to vissl --out deit_small.torch

The config describes the model, the content of the file says whose it is (docs/weights.md). Every
tensor of the network must be mapped: one that cannot be is an error that names it, and --skip
omits it. Before anything is written the converted weights are loaded into the
target model, and its outputs must equal those of the source model. For a folder that timm,
transformers and others open: sslengine export.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.command.networks import expect_in_library
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.errors import CheckpointError, ConfigError, DoesNotFitError, listing, readable
from sslengine.trust import closed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sslengine.config.resolve import Resolved
    from sslengine.models.model import Model
    from sslengine.models.weights.load import Loaded

OWN = ("vissl", "sslengine")
LIBRARIES = ("torchvision", "timm")
FORMS = (*OWN, *(f"{each}:MODEL" for each in LIBRARIES))
# Rounding of float32 sums in another order; a wrong tensor differs by far more.
TOLERANCE = 1e-4
ARGUMENTS = (
    Argument("config", "config=..., as for a run", metavar="KEY=VALUE", nargs="+"),
    Argument("--from", "", Path, "FILE", required=True, parameter="source"),
    Argument("--out", "", Path, "FILE", required=True, parameter="file"),
    Argument("--to", ", ".join(FORMS), metavar="FORM", required=True),
    Argument("--made-by", "compare with the original model as well", metavar="FORM"),
    replace(args.NETWORK, help="of a method with a teacher; auto: what its authors evaluate"),
    Argument("--skip", "skip tensors whose name contains this", default=(), repeats=True),
    args.CONFIG_DIR,
    Argument("--image-size", "side of the images on which outputs are compared", int, default=224,
             least=1),
    replace(args.TRUST_CONFIG, help="allow a run's config.yaml to run code"),
    Argument("--trust-pickle", "allow the weights file to run code", bool),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    given = args.make_parser(__name__).parse_intermixed_args(arguments)
    for option, form in (("--to", given.to), ("--made-by", given.made_by)):
        library, _, name = (form or OWN[0]).partition(":")
        if library in LIBRARIES:
            expect_in_library(library, name, option)
        elif library not in OWN:
            raise ConfigError(f"{option}: expected one of {', '.join(FORMS)}; got {form}")
    if given.file.suffix == ".safetensors" and given.to in OWN:
        raise ConfigError(
            f"--out: a file of {given.to} has parts inside parts, which safetensors cannot hold."
        )
    args.expect_writable(given.file, "--out")
    args.expect_weights(given.source, "--from")
    run = open_named(given.config, given.config_dir, given.trust_config)
    try:
        with closed(run.opened):
            told = _convert(given, run)
    except DoesNotFitError as error:
        advice = "--skip NAME leaves out what is of no part of the network, as a classifier is."
        raise DoesNotFitError(f"{error}\n  {advice}") from error
    print(readable("\n".join(told), but="\n"))
    return 0


def _convert(given: argparse.Namespace, resolved: Resolved) -> list[str]:
    """Convert, and return what was done, line by line.

    Nothing is written before the outputs of the converted network equal those of the source.
    """
    import torch
    from safetensors.torch import save_file

    from sslengine.models.weights import MODEL
    from sslengine.models.weights.state import model_state, vissl_state

    how = {"TRUST_PICKLE": given.trust_pickle, "NETWORK": given.network}
    model, loaded = load(resolved, given.source, given.skip, **how)
    heads = not any(name.startswith("heads.") for name in loaded.left_out)
    if not heads:
        model, _ = load(resolved, given.source, given.skip, heads=False, **how)
    whose = "" if loaded.network == MODEL else f" of the {loaded.network}"
    kind = f" ({loaded.kind})" if loaded.kind else ""
    told = [f"{given.source}{kind}: the trunk{' and the heads' if heads else ' alone'}{whose}"]
    images = _draw_images(model, given.image_size)
    if given.made_by:
        told.append(prove_equal(library_model(given.made_by, model), model, given.made_by, images))
    unfinished = given.file.with_name(f".{given.file.name}.unfinished")
    try:
        if given.to in OWN:
            own = {"classy_state_dict": {"base_model": model_state(model)}}
            torch.save(vissl_state(model) if given.to == "vissl" else own, unfinished)
            again, _ = load(resolved, unfinished, heads=heads, TRUST_PICKLE=given.trust_pickle)
            with torch.no_grad():
                features = zip(model.trunk(images), again.trunk(images), strict=True)
            if not all(torch.equal(one, other) for one, other in features):
                raise CheckpointError(
                    "the outputs of the written file differ. Nothing was written."
                )
            told.append("outputs equal bit by bit after reading the file again")
        else:
            library = library_model(given.to, model)
            told.append(prove_equal(library, model, given.to, images))
            state = {name: value.contiguous() for name, value in library.state_dict().items()}
            save = save_file if given.file.suffix == ".safetensors" else torch.save
            save(state, unfinished)
        os.replace(unfinished, given.file)
    finally:
        unfinished.unlink(missing_ok=True)
    return [*told, f"{given.file}: written"]


def _draw_images(model: Model, side: int) -> Tensor:
    import torch

    from sslengine.models.weights.fit import RGB

    channels = model.trunk.in_chans or RGB
    images = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            model.trunk(images)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigError(
            f"--image-size: the network takes no images of {side} pixels: {error}"
        ) from error
    return images


def load(
    resolved: Resolved, file: Path, skip: Sequence[str] = (), heads: bool = True, **how: Any
) -> tuple[Model, Loaded]:
    """Return the model with the file's weights, and the facts about the file."""
    from sslengine.models.build import trunk_with_heads
    from sslengine.models.options import ModelOptions, WeightsInitOptions
    from sslengine.trained import Trained, set_weights

    skipped = [*read(resolved.config, ModelOptions).WEIGHTS_INIT.SKIP_LAYERS, *skip]
    weights = WeightsInitOptions(str(file), SKIP_LAYERS=skipped, **how)
    trained = Trained(set_weights(resolved, weights, heads), None)
    if trained.loaded.not_taken:
        names = listing(f"trunk.{name}" for name in trained.loaded.not_taken)
        raise DoesNotFitError(f"{file}: not of this model: {names}.")
    return trunk_with_heads(trained.model, "to convert weights"), trained.loaded


def library_model(form: str, model: Model) -> nn.Module:
    """Return the model of `torchvision:resnet50`, with random weights and without its classifier;
    with the classifier's hidden layers if the trunk of `model` has them."""
    from torch import nn

    from sslengine.models.trunks.from_torchvision import remove_classes
    from sslengine.models.trunks.library_options import TorchvisionOptions
    from sslengine.models.weights.fit import RGB

    library, _, name = form.partition(":")
    try:
        if library == "timm":
            import timm

            channels = model.trunk.in_chans or RGB
            return timm.create_model(name, num_classes=0, in_chans=channels).eval()
        network, last = remove_classes(TorchvisionOptions(name))
    except (ValueError, RuntimeError, KeyError, ConfigError) as error:
        raise CheckpointError(f"{form}: {library} makes no such model: {error}") from error
    classifier = last.partition(".")[0]
    if not any(each.startswith(f"{classifier}.") for each in model.trunk.state_dict()):
        network.set_submodule(classifier, nn.Identity())
    return network.eval()


def prove_equal(library: nn.Module, model: Model, form: str, images: Tensor) -> str:
    """Copy all tensors of the trunk, by its own or VISSL's names, into the library's model, and
    return which feature of the trunk its output then equals."""
    import torch

    from sslengine.export.twins import filled
    from sslengine.models.weights.load import COUNTERS
    from sslengine.models.weights.names import write_vissl

    own, both = library.state_dict(), (model.trunk.state_dict(), write_vissl(model.trunk))
    state = max(both, key=lambda names: len(names.keys() & own.keys()))
    counters = {name: each for name, each in own.items() if name.endswith(COUNTERS)}
    filled(library, {**counters, **state}, form)
    names = model.trunk.feature_names
    with torch.no_grad():
        expected, features = library(images).flatten(1), model.trunk(images, names)
    if torch.equal(expected[0], expected[1]):
        raise CheckpointError("two images have one output: so outputs cannot be compared.")
    differences = {
        name: (feature.flatten(1) - expected).abs().max().item()
        for name, feature in zip(names, features)
        if feature.numel() == expected.numel()
    }
    if not differences:
        raise CheckpointError(
            f"{form} gives {tuple(expected.shape)}, which is the shape of no feature of this trunk "
            f"({listing(names)})."
        )
    name, difference = min(differences.items(), key=lambda item: item[1])
    if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise CheckpointError(
            f"the weights fit, and the outputs differ: by {difference:.3g} at the nearest feature, "
            f"{name}. Nothing was written. Is the config's model of the same architecture?"
        )
    return f"{form}: outputs equal the feature {name!r}, largest difference {difference:.2g}"
