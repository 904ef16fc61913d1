"""`--to torchvision`: model.pth in torchvision's names, for a network of torchvision's."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from sslengine.errors import ExportError
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import torch_example, transform_code
from sslengine.export.subject import Subject
from sslengine.export.twins import Twin, fill, find_design

LOAD = """import torch, torchvision
model = torchvision.models.get_model({call}).eval()
{layers}model.load_state_dict(torch.load("{{folder}}/model.pth", weights_only=True))
"""


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


def _write(twin: Twin, folder: Path) -> None:
    torch.save(twin.state, folder / "model.pth")


def torchvision_twin(subject: Subject) -> Twin:
    design = find_design(subject, "torchvision")
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
    return Twin(design, fill(subject, "torchvision", design, network), replaced)


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
