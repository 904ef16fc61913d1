"""Methods that show a part of the patches, with timm's networks: real runs, and what is refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from sslengine.config.resolve import resolve
from sslengine.errors import ConfigError
from sslengine.launch.preflight import expect_fitting_shapes
from tests.integration.test_configs import TWO_STEPS, _train

SMALL = "img_size: 48, embed_dim: 48, depth: 1, num_heads: 2"
NETWORKS = {
    "dinov2": ("vit_small_patch14_reg4_dinov2", f"{SMALL}, patch_size: 8, dynamic_img_size: True"),
    "dinov3": ("vit_small_patch16_dinov3", f"{SMALL}, patch_size: 8, global_pool: token"),
    # On a convolutional network that makes a feature of 4 x 4 pixels.
    "hybrid": ("vit_tiny_r_s16_p8_224", f"{SMALL}, patch_size: 2, dynamic_img_size: True"),
}
PATCH = "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=8"
METHODS = {
    "mae": (PATCH,),
    "ijepa": (PATCH,),
    "capi": (PATCH, "config.LOSS.capi_loss.predictor_heads=2"),
    "msn": (PATCH,),
}
QUICK = (("ijepa", "dinov3"), ("capi", "dinov2"), ("mae", "dinov3"), ("msn", "dinov2"))


def arguments(method: str, network: str) -> list[str]:
    model, given = NETWORKS[network]
    return [
        f"config=quickstart/{method}", *METHODS[method], "config.MODEL.TRUNK.NAME=timm",
        f"config.MODEL.TRUNK.TIMM.model={model}", f"config.MODEL.TRUNK.TIMM.arguments={{{given}}}",
    ]  # fmt: skip


def _trials() -> list[object]:
    return [pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
            for each in product(METHODS, NETWORKS)]  # fmt: skip


@pytest.mark.parametrize(("method", "network"), _trials())
def test_two_steps(method: str, network: str, tmp_path: Path) -> None:
    run = resolve([*arguments(method, network), *TWO_STEPS])
    expect_fitting_shapes(run.config)
    task = _train(run, tmp_path)
    shown = task.base_model.trunk.patch_drop
    assert shown.tells_places == (network == "dinov3")


def test_another_patch_size_is_told_before_launch() -> None:
    given = arguments("ijepa", "dinov3")
    given[-1] = given[-1].replace("patch_size: 8, ", "")  # the network's own
    with pytest.raises(ConfigError, match=r"patch_size: ijepa_loss needs"):
        expect_fitting_shapes(resolve(given).config)


def test_a_network_that_needs_every_patch_is_told_before_launch() -> None:
    given = arguments("capi", "dinov3")
    given[-2:] = ["config.MODEL.TRUNK.TIMM.model=beit_base_patch16_224",
                  f"config.MODEL.TRUNK.TIMM.arguments={{{SMALL}}}"]  # fmt: skip
    with pytest.raises(ConfigError, match=r"config\.MODEL\.TRUNK\.NAME"):
        expect_fitting_shapes(resolve(given).config)
