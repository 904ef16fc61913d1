from __future__ import annotations

import torch
from torch import nn
from torchvision.models import alexnet

from sslengine.contrib.trunks.alexnet import LAST_LAYERS, AlexNet
from sslengine.models.vissl_names import from_vissl

from . import checks


def test_features_are_those_of_torchvision() -> None:
    torch.manual_seed(0)
    model, library = AlexNet().eval(), alexnet().eval()
    own = {name: value for name, value in library.state_dict().items() if "classifier" not in name}
    model.load_state_dict(from_vissl(model, own))
    x = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        found = dict(zip(model.feature_names, model(x, model.feature_names), strict=True))
        for name, layer in LAST_LAYERS.items():
            torch.testing.assert_close(found[name], library.features[: layer + 1](x))
        library.classifier = nn.Identity()
        torch.testing.assert_close(found["flatten"], library(x))
    assert found["flatten"].shape == (2, 9216)


def test_each_feature_alone() -> None:
    sizes = {name: each.shape[1] for name, each in checks.features(AlexNet(), (64, 64)).items()}
    assert sizes == {
        "conv1": 64, "pool1": 64, "conv2": 192, "pool2": 192, "conv3": 384, "conv4": 256,
        "conv5": 256, "pool5": 256, "flatten": 9216,
    }  # fmt: skip


def test_recomputing_changes_nothing() -> None:
    model = AlexNet()
    model.checkpoint_activations(3)
    assert checks.recomputes(model, model.get_submodule("layers.0"), (64, 64))


def test_names() -> None:
    checks.names_round_trip(AlexNet())
