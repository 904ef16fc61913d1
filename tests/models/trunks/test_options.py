from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from omegaconf import OmegaConf

from sslengine import catalog  # noqa: F401 - declares the names
from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import section_problems
from sslengine.errors import ConfigError
from sslengine.models.options import TrunkOptions
from sslengine.models.trunks.options import (
    BeitOptions,
    ConvitOptions,
    ConvNextOptions,
    MobileNetOptions,
    RegNetOptions,
    SwinTransformerOptions,
    XcitOptions,
)


def options(tree: dict[str, Any]) -> TrunkOptions:
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrunkOptions), tree))
    assert isinstance(made, TrunkOptions)
    return made


def all_problems(tree: dict[str, Any]) -> list[str]:
    sections = [each for each in vars(options(tree)).values() if dataclasses.is_dataclass(each)]
    return [problem for each in sections for problem in section_problems(each)]


def test_vissl_defaults() -> None:
    """Sections that the trunk in use does not read must not complain either."""
    assert all_problems({}) == []
    convit, xcit, swin = ConvitOptions(), XcitOptions(), SwinTransformerOptions()
    assert (convit.N_GPSA_LAYERS, convit.LOCALITY_DIM, convit.LOCALITY_STRENGTH) == (10, 10, 1.0)
    assert (xcit.HIDDEN_DIM, xcit.NUM_LAYERS, xcit.NUM_HEADS, xcit.ETA) == (384, 12, 8, 1.0)
    assert (xcit.DROP_PATH_RATE, xcit.TOKENS_NORM, xcit.QKV_BIAS) == (0.05, True, True)
    assert (swin.DEPTHS, swin.NUM_HEADS, swin.WINDOW_SIZE) == ([2, 2, 6, 2], [3, 6, 12, 24], 7)
    assert (swin.EMBED_DIM, swin.PATCH_SIZE, swin.DROP_PATH_RATE) == (96, 4, 0.1)
    assert ConvNextOptions().DEPTH == [3, 3, 27, 3]
    beit, mobile = BeitOptions(), MobileNetOptions()
    assert (beit.HIDDEN_DIM, beit.NUM_LAYERS, beit.NUM_HEADS, beit.MLP_RATIO) == (768, 12, 12, 4.0)
    assert (beit.USE_ABS_POS_EMB, beit.USE_MEAN_POOLING, beit.DROP_PATH_RATE) == (True, True, 0.0)
    off = (beit.QKV_BIAS, beit.USE_REL_POS_BIAS, beit.USE_SHARED_REL_POS_BIAS, beit.INIT_VALUES)
    assert off == (False, False, False, False)
    assert mobile.TIMM_BN is False


STAGES = {
    "depths": [1, 2], "widths": [16, 32], "group_widths": [8, 8],
    "bottleneck_multipliers": [1.0, 1.0], "strides": [2, 2],
}  # fmt: skip
RULE = {"depth": 5, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}


@pytest.mark.parametrize(
    ("made", "key"),
    [
        (RegNetOptions(name="regnet_y_16gf", depth=3), "depth"),
        (RegNetOptions(name="regnet_x_8gf", use_se=True), "use_se"),
        (RegNetOptions(name="regnet_x_8gf", depths=[1]), "depths"),
        (RegNetOptions(name="anynet", **RULE, **STAGES), "depth"),
        (RegNetOptions(name="anynet"), "depths"),
        (RegNetOptions(name="anynet", **{**STAGES, "strides": [2]}), "depths"),
        (RegNetOptions(**RULE, strides=[2]), "strides"),
        (RegNetOptions(depth=3, w_0=8), "w_a"),
        (RegNetOptions(**{**RULE, "w_0": 20}), "w_0"),
        (RegNetOptions(**{**RULE, "w_m": 1.0}), "w_m"),
        (XcitOptions(NUM_HEADS=5), "NUM_HEADS"),
        (SwinTransformerOptions(QK_SCALE=True), "QK_SCALE"),
        (SwinTransformerOptions(IMAGE_SIZE=30), "PATCH_SIZE"),
        (SwinTransformerOptions(NUM_HEADS=[3, 6]), "NUM_HEADS"),
        (SwinTransformerOptions(NUM_HEADS=[3, 5, 6, 6]), "NUM_HEADS.1"),
        (ConvNextOptions(DIMS=[8, 8]), "DIMS"),
        (ConvNextOptions(DEPTH=[1, 1, 1]), "DEPTH"),
        (BeitOptions(QK_SCALE=True), "QK_SCALE"),
        (BeitOptions(INIT_VALUES=True), "INIT_VALUES"),
        (BeitOptions(NUM_HEADS=7), "NUM_HEADS"),
        (BeitOptions(IMAGE_SIZE=225), "PATCH_SIZE"),
    ],
)
def test_the_key_that_is_wrong(made: Any, key: str) -> None:
    assert key in [each.partition(":")[0] for each in section_problems(made)]


@pytest.mark.parametrize(
    ("library", "near", "name"),
    [("timm", "convnext_tinny", "convnext_tiny"), ("torchvision", "resnet5", "resnet50"),
     ("timm", "resnet5O.a1_in1k", "resnet50")],
)  # fmt: skip
def test_a_network_that_the_library_has_not(library: str, near: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{library.upper()}\.model: {library} has no.*{name}"):
        resolve_dict({"MODEL": {"TRUNK": {"NAME": library, library.upper(): {"model": near}}}})


@pytest.mark.parametrize(
    ("options", "text"),
    [({}, "expected the name of one of timm's networks"),
     ({"model": "resnet18", "arguments": {"num_classes": 3}}, "num_classes: a trunk has no"),
     ({"model": "resnet18", "arguments": {"in_chans": 3}}, "in_chans: set MODEL.INPUT_CHANNELS")],
)  # fmt: skip
def test_what_a_library_is_not_to_be_asked_for(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"MODEL\.TRUNK\.TIMM\..*{text}"):
        resolve_dict({"MODEL": {"TRUNK": {"NAME": "timm", "TIMM": options}}})


def test_weights_may_have_a_name_of_their_own() -> None:
    options = {"model": "resnet50.a1_in1k"}
    resolve_dict({"MODEL": {"TRUNK": {"NAME": "timm", "TIMM": options}}})
