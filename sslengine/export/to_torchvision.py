"""`--to torchvision`: model.pth in torchvision's names, for a network of torchvision's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.subject import Subject
from sslengine.export.twins import Design, Twin, designed, fill, is_standard, refuse_own_resnets
from sslengine.models.options import TrunkOptions
from sslengine.models.trunks.from_torchvision import TorchvisionTrunk

LOAD = """import torch, torchvision
model = torchvision.models.get_model({call}).eval()
{layers}model.load_state_dict(torch.load("{{folder}}/model.pth", weights_only=True))
"""


@dataclass(frozen=True)
class TorchvisionTwin(Twin):
    # Modules that no argument chooses, as Python code.
    replaced: Mapping[str, str]


def prepare(subject: Subject, license: str) -> Made:
    twin = torchvision_twin(subject)
    arguments = [f"{name}={value!r}" for name, value in twin.design.arguments.items()]
    layers = [
        f'model.set_submodule("{name}", torch.nn.{code})\n' for name, code in twin.replaced.items()
    ]
    load = LOAD.format(
        call=", ".join([f'"{twin.design.name}"', *arguments]), layers="".join(layers)
    )
    return Made(
        partial(_write, twin),
        usage=load + transform_code(subject),
        example=torch_example(subject),
        proofs=(Proof("torchvision", load, "features = model(images)"),),
        facts={"architecture": twin.design.name},
    )


def _write(twin: TorchvisionTwin, folder: Path) -> None:
    torch.save(twin.state, folder / "model.pth")


def torchvision_twin(subject: Subject) -> TorchvisionTwin:
    design = _design(subject)
    from torchvision import models  # many: some trunks are refused before they are needed

    if design.name not in models.list_models(module=models):  # type: ignore[attr-defined]
        raise ExportError(f"torchvision has no network {design.name!r}.")
    try:
        network = models.get_model(design.name, **design.arguments)  # type: ignore[attr-defined]
        replaced = {design.last: "Identity()", **_other_layers(network, subject)}
        for name, code in replaced.items():
            network.set_submodule(name, eval(f"nn.{code}", {"nn": nn}))  # what torch prints
    except (TypeError, ValueError, AttributeError) as error:
        raise ExportError(f"torchvision cannot make {design.name}: {error}") from error
    return TorchvisionTwin(design, fill(subject, "torchvision", design, network), replaced)


def _other_layers(network: nn.Module, subject: Subject) -> dict[str, str]:
    """The first convolution for other channels; with a small stem, it and the pooling."""
    name = next(name for name, each in network.named_modules() if isinstance(each, nn.Conv2d))
    theirs, ours = repr(network.get_submodule(name)), repr(_first_convolution(subject.trunk))
    found = {} if theirs == ours else {name: ours}
    trunk = subject.options.TRUNK
    if trunk.NAME == "resnet" and trunk.RESNETS.STEM == "small":
        found["maxpool"] = "Identity()"
    return found


def _first_convolution(network: nn.Module) -> nn.Module:
    return next(each for each in network.modules() if isinstance(each, nn.Conv2d))


def _design(subject: Subject) -> Design:
    options = subject.options.TRUNK
    if options.NAME == "torchvision":
        arguments = dict(options.TORCHVISION.arguments)
        if options.TORCHVISION.model in ("googlenet", "inception_v3"):
            arguments |= {"aux_logits": False, "init_weights": True}
        last = cast(TorchvisionTrunk, subject.trunk).left_out[0].rstrip(".")
        return Design(options.TORCHVISION.model, arguments, last=last)
    if options.NAME == "timm":
        return Design(options.TIMM.model.partition(".")[0], options.TIMM.arguments)
    return designed(options, _TORCHVISION, "torchvision")


def _torchvision_resnet(trunk: TrunkOptions) -> Design:
    options = trunk.RESNETS
    refuse_own_resnets(options, "torchvision")
    if not is_standard(options) or options.DEPTH == 200:
        raise ExportError(f"torchvision has no ResNet with the blocks {list(options.stages())}.")
    arguments = {"groups": options.GROUPS, "width_per_group": options.WIDTH_PER_GROUP}
    usual = (options.GROUPS, options.WIDTH_PER_GROUP) == (1, 64)
    return Design(f"resnet{options.DEPTH}", {} if usual else arguments)


def _torchvision_mobilenet(trunk: TrunkOptions) -> Design:
    if trunk.MOBILE_NET.TIMM_BN:
        raise ExportError("torchvision's mobilenet_v3_large has batch norms with another eps.")
    return Design("mobilenet_v3_large", renamed=_LAYERS, last="classifier")


_LAYERS = ((r"^layers\.", "features."),)
_TORCHVISION: dict[str, Callable[[TrunkOptions], Design]] = {
    "resnet": _torchvision_resnet,
    "alexnet": lambda trunk: Design("alexnet", renamed=_LAYERS, last="classifier"),
    "mobilenetv3_tv": _torchvision_mobilenet,
}
