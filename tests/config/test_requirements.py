"""What losses need of a run: each need is checked before the launch, with its key path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from sslengine.config.requirements import expect_fitting_model
from sslengine.config.resolve import resolve
from sslengine.errors import ConfigError
from sslengine.registry import Requirements, register_loss

TRAIN = "config.DATA.TRAIN"
ONE_VIEW = f"{TRAIN}.TRANSFORMS=[{{name: ToTensor}}]"
NO_HEAD = "config.MODEL.HEAD.PARAMS=[[mlp, {dims: [16, 8]}]]"
PLAIN = f"{TRAIN}.COLLATE_FUNCTION=default_collate"


@pytest.mark.parametrize(
    ("recipe", "change", "path"),
    [
        *(
            (name, ONE_VIEW, f"{TRAIN}.TRANSFORMS")
            for name in ("simclr", "moco", "byol", "simsiam", "barlow_twins", "vicreg", "dino",
                         "swav", "ibot", "dinov2", "dinov3", "msn")
        ),
        *(
            (name, PLAIN, f"{TRAIN}.COLLATE_FUNCTION")
            for name in ("dino", "swav", "ibot", "msn", "capi", "ijepa", "deepclusterv2")
        ),
        *(
            (name, NO_HEAD, "config.MODEL.HEAD.PARAMS")
            for name in ("dino", "swav", "ibot", "msn", "simmim")
        ),
        *(
            (name, f"{TRAIN}.INPUT_KEY_NAMES=[data]", f"{TRAIN}.INPUT_KEY_NAMES")
            for name in ("capi", "ijepa", "simmim", "data2vec", "ibot", "msn")
        ),
        *(
            (name, f"{TRAIN}.COLLATE_FUNCTION_PARAMS={{patch_size: 7}}",
             f"{TRAIN}.COLLATE_FUNCTION_PARAMS.patch_size")
            for name in ("capi", "ijepa", "msn")
        ),
        *(
            (name, f"{TRAIN}.BATCHSIZE_PER_REPLICA=1", f"{TRAIN}.BATCHSIZE_PER_REPLICA")
            for name in ("barlow_twins", "vicreg")
        ),
        *(
            (name, f"{TRAIN}.LABEL_TYPE=zero", f"{TRAIN}.LABEL_TYPE")
            for name in ("deepclusterv2", "npid")
        ),
        ("npid", "config.TEST_MODEL=true", "config.TEST_MODEL"),
        ("dino", "config.LOSS.dino_loss.crops_for_teacher=[0,9]",
         "config.LOSS.dino_loss.crops_for_teacher"),
        ("swav", "config.LOSS.swav_loss.crops_for_assign=[]",
         "config.LOSS.swav_loss.crops_for_assign"),
        ("deepclusterv2", "config.LOSS.deepclusterv2_loss.memory_params.crops_for_mb=[0,9]",
         "config.LOSS.deepclusterv2_loss.memory_params.crops_for_mb"),
    ],
)  # fmt: skip
def test_a_run_without_what_its_loss_needs(recipe: str, change: str, path: str) -> None:
    with pytest.raises(ConfigError) as told:
        resolve([f"config=quickstart/{recipe}", change])
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith(f"{path}: ") and "_loss" in line], lines


def test_all_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        resolve(["config=quickstart/dino", ONE_VIEW, PLAIN, NO_HEAD])
    assert len(str(told.value).splitlines()) >= 3


@register_loss("loss_of_requirements_test", trunk_input="shown", patch_size=16)
class Needy:
    pass


class Heir(Needy):
    pass


def test_a_subclass_needs_what_its_base_does() -> None:
    assert Heir.requires == Requirements(trunk_input="shown", patch_size=16)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("routed", "taken", "side", "path"),
    [
        ((), ("shown",), 16, "config.MODEL.MULTI_INPUT_HEAD_MAPPING"),
        (("shown",), (), 16, "config.MODEL.TRUNK.NAME"),
        (("shown",), ("shown",), 14, f"{TRAIN}.COLLATE_FUNCTION_PARAMS.patch_size"),
        (("shown",), ("shown",), 16, ""),
    ],
)
def test_a_model_whose_trunk_does_not_fit(
    routed: tuple[str, ...], taken: tuple[str, ...], side: int, path: str
) -> None:
    config: Any = OmegaConf.create(
        {"LOSS": {"name": "needy"}, "DATA": {"TRAIN": {"COLLATE_FUNCTION_PARAMS": {}}}}
    )
    trunk = SimpleNamespace(extra_inputs=taken, patch_size=side)
    model = SimpleNamespace(trunk=trunk, routes=[SimpleNamespace(additional_keys=routed)])
    if not path:
        expect_fitting_model(config, Needy(), model)
        return
    with pytest.raises(ConfigError, match=rf"^{path}: needy needs"):
        expect_fitting_model(config, Needy(), model)
