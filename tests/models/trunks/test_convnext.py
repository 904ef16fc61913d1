from __future__ import annotations

from typing import Any

import pytest
import timm.models.convnext
import torch
from timm.models.convnext import ConvNeXt as TimmConvNeXt

from sslengine.models.trunks.convnext import ConvNext
from sslengine.models.trunks.options import ConvNextOptions
from sslengine.models.vissl_names import to_vissl

from . import checks

DEPTH, DIMS = [1, 2, 1, 1], [8, 16, 24, 32]


def trunk(**options: Any) -> ConvNext:
    torch.manual_seed(0)
    model = ConvNext(ConvNextOptions(**{"DEPTH": DEPTH, "DIMS": DIMS, **options}))
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            # At their start of 1e-6 blocks would not be seen.
            assert torch.all(parameter == 1e-6)
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def theirs(**options: Any) -> TimmConvNeXt:
    return TimmConvNeXt(num_classes=0, depths=DEPTH, dims=DIMS, **options)


@pytest.mark.parametrize("size", [(64, 64), (96, 32)])
def test_features_are_those_of_timm(size: tuple[int, int]) -> None:
    model, library = trunk().eval(), theirs().eval()
    library.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        stages = library.forward_intermediates(x, intermediates_only=True)
        found = model(x, model.feature_names)
        expected = [library.stem(x), *stages, library(x), library(x)]
        for feature, other in zip(found, expected, strict=True):
            torch.testing.assert_close(feature, other)


def test_blocks_drop_the_same_in_training() -> None:
    model, library = trunk(DROP_PATH_RATE=0.5), theirs(drop_path_rate=0.5)
    library.load_state_dict(model.state_dict())
    x = torch.randn(4, 3, 64, 64)
    outputs = []
    for each in (model, library):
        torch.manual_seed(3)
        outputs.append(each.train()(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])


def test_vissl_names_are_those_of_the_authors() -> None:
    model = trunk().eval()
    checks.names_round_trip(model)
    named = to_vissl(model)
    for name in ("downsample_layers.0.0.weight", "downsample_layers.3.1.weight", "norm.bias"):
        assert name in named
    assert "stages.1.1.pwconv2.weight" in named
    library = theirs().eval()
    library.load_state_dict(timm.models.convnext.checkpoint_filter_fn(named, library))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))


@pytest.mark.parametrize("parts", [1, 4])
def test_activation_checkpointing_changes_nothing(parts: int) -> None:
    checks.checkpointing_changes_nothing(trunk(DROP_PATH_RATE=0.3), parts)


def test_features() -> None:
    found = checks.features(trunk(), (64, 32))
    assert list(found) == ["stem", "stage1", "stage2", "stage3", "stage4", "lastCLS", "flatten"]
    assert tuple(found["stage4"].shape) == (2, 32, 2, 1)
    assert tuple(found["flatten"].shape) == (2, 32)
