from __future__ import annotations

from typing import Any

import pytest
import torch
from classy_vision.models.efficientnet import MODEL_PARAMS
from classy_vision.models.efficientnet import EfficientNet as ClassyEfficientNet

from sslengine.models.trunks.efficientnet import EfficientNet
from sslengine.models.trunks.options import EfficientNetOptions
from sslengine.models.vissl_names import to_vissl

from . import checks


def trunk(**options: Any) -> EfficientNet:
    torch.manual_seed(0)
    return EfficientNet(EfficientNetOptions(**options))


def theirs(ours: EfficientNet, version: str, **options: Any) -> ClassyEfficientNet:
    """Classy Vision's own with the same weights; its forward ends with dropout."""
    arguments = {
        "bn_momentum": 0.01,
        "bn_epsilon": 0.001,
        "drop_connect_rate": 0.2,
        "width_divisor": 8,
        "min_width": None,
        "use_se": True,
    }
    model = ClassyEfficientNet(1, MODEL_PARAMS[version], **{**arguments, **options})
    left = model.load_state_dict(ours.state_dict(), strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["fc.weight", "fc.bias"], [])
    model.fc = torch.nn.Identity()
    return model


@pytest.mark.parametrize(
    ("version", "options"),
    [("B0", {}), ("B1", {"use_se": False}), ("B0", {"width_divisor": 4, "min_width": 20})],
)
def test_features_are_those_of_classy_vision(version: str, options: dict[str, Any]) -> None:
    ours = trunk(model_version=version, **options)
    other = theirs(ours, version, **options)
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x)[0], other.eval()(x))


def test_the_same_blocks_and_values_drop_in_training() -> None:
    ours = trunk(drop_connect_rate=0.5)
    other = theirs(ours, "B0", drop_connect_rate=0.5).train()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    outputs = []
    for model in (ours.double().train(), other.double()):
        torch.manual_seed(3)
        with torch.no_grad():
            outputs.append(model(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])
    with torch.no_grad():
        assert not torch.allclose(ours(x)[0], outputs[1])


def test_features() -> None:
    model = trunk()
    found = checks.features(model, (64, 32))
    assert list(found)[:2] == ["conv1", "block0"]
    assert list(found)[-5:] == ["block15", "conv_final", "avgpool", "flatten", "dropout"]
    torch.testing.assert_close(found["flatten"], found["conv_final"].mean((2, 3)))
    torch.testing.assert_close(found["avgpool"].flatten(1), found["flatten"])
    assert tuple(found["block15"].shape) == (2, 320, 2, 1)
    assert model.dropout.p == 0.2
    assert (model.bn0.eps, model.bn0.momentum) == (0.001, 0.01)


def test_vissl_names() -> None:
    model = trunk()
    checks.names_round_trip(model)
    names = to_vissl(model)
    for name in ("conv1.0.weight", "conv1.1.bias", "block15.bn2.weight", "conv_final.0.weight"):
        assert f"_feature_blocks.{name}" in names
    torch.testing.assert_close(
        names["_feature_blocks.block1.expand_conv.weight"],
        model.blocks.get_submodule("block1-0").expand_conv.weight,
    )


def test_activation_checkpointing_changes_nothing() -> None:
    checks.checkpointing_changes_nothing(trunk(), 4)
