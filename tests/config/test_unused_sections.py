"""Keys and values that do nothing in the run that is chosen: each is told, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve, resolve_dict
from sslengine.config.run_folder import open_run
from sslengine.config.show import show
from sslengine.errors import ConfigError
from tests.config.recipes import recipe, resolved

ROOT = Path(__file__).resolve().parents[2]
SIMCLR = "config.LOSS.simclr_info_nce_loss.temperature=0.3"
MOCO = "config.LOSS.moco_loss.temperature=0.3"


def warnings(*arguments: str, folder: Path = ROOT / "configs") -> list[str]:
    found = resolve(arguments, [str(folder)]).warnings
    return [each for each in found if "has no effect" in each]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["config=quickstart/dinov2", "+config/dinov3=gram"],
         "config.LOSS.dinov3_loss has no effect: config.LOSS.name is dinov2_loss"),
        (["config=quickstart/simclr", MOCO],
         "config.LOSS.moco_loss has no effect: config.LOSS.name is simclr_info_nce_loss"),
        (["config=quickstart/simclr", "config.METERS.names=[]",
          "config.METERS.accuracy_list_meter.topk_values=[1]"],
         "config.METERS.accuracy_list_meter has no effect: config.METERS.names is empty"),
        (["config=quickstart/simclr", SIMCLR, "config.LOSS.name=CrossEntropyLoss"],
         "config.LOSS.simclr_info_nce_loss has no effect: config.LOSS.name is CrossEntropyLoss"),
    ],
)  # fmt: skip
def test_a_later_section_of_another_component_is_told(arguments: list[str], told: str) -> None:
    assert warnings(*arguments) == [told]


@pytest.mark.parametrize(
    "arguments",
    [
        ["config=quickstart/dinov3", "+config/dinov3=gram"],
        ["config=quickstart/simclr", SIMCLR],
        ["config=quickstart/simclr", "config.LOSS.name=moco_loss", MOCO],
        ["config=quickstart/simclr", "config.LOSS.name=CrossEntropyLoss"],  # the file's section
        ["config=quickstart/mae"],
    ],
)
def test_what_is_chosen_and_what_another_place_chose_away_are_not(arguments: list[str]) -> None:
    assert warnings(*arguments) == []


def test_a_file_may_hold_sections_of_several(tmp_path: Path) -> None:
    """As the file of a run does, and many of VISSL's."""
    run = resolve(["config=quickstart/simclr", "config.LOSS.name=CrossEntropyLoss"])
    assert "simclr_info_nce_loss" in run.config.LOSS
    (tmp_path / "run.yaml").write_text(show(run))
    assert warnings("config=run", folder=tmp_path) == []


# ---- optimizer keys


CURVE = {"name": "constant", "value": 0.1}


def optimizer_warnings(**changes: Any) -> list[str]:
    found = resolved(OPTIMIZER__param_schedulers__lr=CURVE, **changes).warnings
    return [each for each in found if "OPTIMIZER" in each]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("adamw", "nesterov", True), ("adamw", "momentum", 0.5), ("sgd", "betas", [0.8, 0.9]),
     ("rmsprop", "nesterov", True), ("torch.optim:NAdam", "momentum", 0.5)],
)  # fmt: skip
def test_what_an_optimizer_does_not_take_is_said(name: str, key: str, value: Any) -> None:
    (warning,) = optimizer_warnings(OPTIMIZER__name=name, **{f"OPTIMIZER__{key}": value})
    assert f"config.OPTIMIZER.{key} has no effect: {name} has no {key}" in warning


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("sgd", "nesterov", True), ("adamw", "betas", [0.8, 0.9]), ("lars", "momentum", 0.5),
     ("adamw", "momentum", 0.9), ("torch.optim:NAdam", "betas", [0.8, 0.9])],
)  # fmt: skip
def test_what_has_an_effect_or_is_a_default_is_not(name: str, key: str, value: Any) -> None:
    assert optimizer_warnings(OPTIMIZER__name=name, **{f"OPTIMIZER__{key}": value}) == []


# ---- outlasting


KEY = "config.LOSS.dinov2_loss.teacher_temp_warmup_epochs is 30, but the run has 10 epochs"


@pytest.mark.parametrize(
    ("length", "told"), [("num_epochs=10", True), ("num_epochs=30", False), ("num_iterations=9", False)]
)  # fmt: skip
def test_a_run_shorter_than_the_warm_up_of_a_temperature(length: str, told: bool) -> None:
    warnings = resolve(["config=photos/dinov2", f"config.OPTIMIZER.{length}"]).warnings
    assert any(KEY in each for each in warnings) == told


@pytest.mark.parametrize("judged", [True, False])
def test_a_run_that_is_judged_is_not_trained(judged: bool, tmp_path: Path) -> None:
    trained = resolve(["config=photos/dinov2", "config.OPTIMIZER.num_epochs=10"])
    (tmp_path / "config.yaml").write_text(show(trained))
    warnings = open_run(tmp_path, judged=judged).warnings
    assert any(KEY in each for each in warnings) != judged


@pytest.mark.parametrize(("frozen", "warned"), [(1, False), (2, True), (5, True)])
def test_what_is_frozen_for_the_whole_run(frozen: int, warned: bool) -> None:
    run = resolved(MODEL__TEMP_FROZEN_PARAMS_EPOCH_MAP=[["trunk.*", frozen]])
    said = f"trunk.* is frozen for {frozen} epochs, and the run has 2"
    assert any(said in each and "it is never trained" in each for each in run.warnings) == warned


# ---- views


APART = {"MODEL__VIEWS_APART": True}
ONE_VIEW = {
    "DATA__TRAIN__TRANSFORMS": [{"name": "ToTensor"}],
    "LOSS__name": "CrossEntropyLoss",
    "DATA__TRAIN__COLLATE_FUNCTION": "default_collate",
}


def test_views_that_one_tensor_holds_and_crops_in_a_list() -> None:
    assert resolved(**APART).config.MODEL.VIEWS_APART
    crops = {"name": "ImgPilToMultiCrop", "total_num_crops": 3, "num_crops": [2, 1],
             "size_crops": [8, 4], "crop_scales": [[0.3, 1], [0.1, 0.5]]}  # fmt: skip
    resolved(
        **APART,
        DATA__TRAIN__TRANSFORMS=[crops, {"name": "ToTensor"}],
        DATA__TRAIN__COLLATE_FUNCTION="multicrop_collator",
        LOSS={"name": "multicrop_simclr_info_nce_loss"},
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (ONE_VIEW, "TRANSFORMS make one view"),
        ({"DATA__TRAIN__COLLATE_FUNCTION": "moco_collator", "LOSS__name": "moco_loss"},
         "COLLATE_FUNCTION must be simclr_collator or multicrop_collator, got 'moco_collator'"),
        ({"MODEL__MULTI_INPUT_HEAD_MAPPING": [["data", ["flatten"]]]},
         "each input of MULTI_INPUT_HEAD_MAPPING"),
        ({"MODEL__BASE_MODEL_NAME": "torch.nn:Identity"}, "a custom model"),
        ({"TRAINER__TRAIN_STEP_NAME": "gradcache_train_step"},
         "gradcache_train_step splits a batch into chunks"),
    ],
)  # fmt: skip
def test_refused_where_it_would_do_nothing_or_harm(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config\.MODEL\.VIEWS_APART: .*{says}"):
        resolved(**APART, **changes)


def test_what_judges_a_trunk_reads_one_view_and_may_keep_the_key() -> None:
    resolve_dict(recipe(**APART, **ONE_VIEW), engine="evaluate")
