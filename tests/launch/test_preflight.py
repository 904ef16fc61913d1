"""The shapes of a run before it is launched: what is told, and what is left to the run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from sslengine.config.resolve import resolve
from sslengine.dotted import full_metric_name, leaves
from sslengine.errors import ConfigError, TrainingError
from sslengine.launch import preflight
from sslengine.launch.cli import run_all
from sslengine.launch.preflight import expect_fitting_shapes, expect_known_metrics, first_batch
from sslengine.methods.base import Method
from sslengine.methods.step import Step
from sslengine.models.trunks.base import Trunk
from sslengine.registry import LOSSES, register_loss, register_trunk
from tests.config.recipes import RECIPE, resolved
from tests.hooks.test_online_eval import ONLINE, SHAPES, trained
from tests.teachers import needed

TRANSFORMS: list[dict[str, Any]] = RECIPE["DATA"]["TRAIN"]["TRANSFORMS"]
FILES = {"DATA__TRAIN__DATA_SOURCES": ["disk_folder"], "DATA__TRAIN__DATA_PATHS": ["/no/folder"],
         "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": False}  # fmt: skip


def _expect(**changes: Any) -> None:
    expect_fitting_shapes(resolved(**changes).config)


def _with(*transforms: dict[str, Any]) -> list[dict[str, Any]]:
    return [*TRANSFORMS, *transforms]


def test_a_run_that_fits_is_left_in_peace() -> None:
    before = torch.get_rng_state()
    _expect()
    _expect(**FILES)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MODEL__HEAD__PARAMS": [["mlp", {"dims": [31, 8]}]]}, r"HEAD.PARAMS: .*31.*\(4, 32\)"),
        ({"MODEL__TRUNK__NAME": "vision_transformer",
          "MODEL__TRUNK__VISION_TRANSFORMERS": {"IMAGE_SIZE": 32, "PATCH_SIZE": 16, "NUM_LAYERS": 1,
                                                "NUM_HEADS": 1, "HIDDEN_DIM": 8, "MLP_DIM": 8},
          "MODEL__HEAD__PARAMS": [["mlp", {"dims": [9, 8]}]]}, r"HEAD.PARAMS: .*\(4, 8\)|PATCH|8 x 8"),
        ({"DATA__TRAIN__TRANSFORMS": _with({"name": "Normalize", "mean": [0.5], "std": [1, 1]})},
         r"config.DATA.TRAIN.TRANSFORMS.4 \(Normalize\) .*RuntimeError"),
        ({"DATA__TRAIN__TRANSFORMS": _with({"name": "ImgPilGaussianBlur", "p": 1.0})},
         r"config.DATA.TRAIN.TRANSFORMS.4 \(ImgPilGaussianBlur\)"),
    ],
)  # fmt: skip
def test_what_is_told_before_data_is_read(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){said}"):
        _expect(**changes, **FILES)


def test_where_the_files_decide_on_the_size_nothing_is_said_of_it() -> None:
    train = resolved(
        **FILES, DATA__TRAIN__COLLATE_FUNCTION="default_collate", LOSS__name="CrossEntropyLoss",
        DATA__TRAIN__TRANSFORMS=[{"name": "ToTensor"}],
    ).config.DATA.TRAIN  # fmt: skip
    assert first_batch(train, "TRAIN") is None


@register_trunk("preflight_test_trunk")
class _ReadsValues(Trunk):
    feature_names = ("flatten",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def features(self, x: Any, wanted: Any) -> Any:
        return {"flatten": x.new_full((len(x), 32), x.mean().item())}


def test_a_trunk_that_needs_values_is_left_to_the_run() -> None:
    _expect(MODEL__TRUNK__NAME="preflight_test_trunk")


def test_no_memory_is_taken_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 billion of them: 320 GB."""
    vit = {"IMAGE_SIZE": 16, "PATCH_SIZE": 8, "NUM_LAYERS": 2, "NUM_HEADS": 1,
           "HIDDEN_DIM": 65536, "MLP_DIM": 262144}  # fmt: skip
    run = {"MODEL__TRUNK__NAME": "vision_transformer", "MODEL__TRUNK__VISION_TRANSFORMERS": vit}
    with pytest.raises(ConfigError, match="65536"):
        _expect(**run)  # the head has 32


# One for each method, and PIRL, whose model takes several inputs.
QUICKSTARTS = ("barlow_twins", "byol", "deepclusterv2", "dino", "moco", "pirl", "npid", "rotnet",
               "simclr", "simsiam", "swav", "vicreg", "ibot", "dinov2", "ijepa", "simmim", "data2vec", "msn",
               "dinov3", "distillation", "capi", "lejepa", "visreg", "moco_v3", "nnclr", "supcon",
               "ressl", "vicregl", "densecl")  # fmt: skip


@pytest.mark.slow
def test_every_method_is_passed_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its end, in a run that fits. Others would be left to the run, and tell nothing here."""
    results: list[Any] = []

    pass_method = preflight._pass_method

    def noted(*arguments: Any) -> Any:
        results.append(pass_method(*arguments))

    monkeypatch.setattr(preflight, "_pass_method", noted)
    passed = set()
    for name in QUICKSTARTS:
        config = resolve([f"config=quickstart/{name}", *needed(name)]).config
        results.clear()
        expect_fitting_shapes(config)
        for result in results:
            loss = result["loss"] if isinstance(result, dict) else result
            assert (loss.shape, loss.device.type) == ((), "meta"), name
            passed.add(config.LOSS.name)
    ours = {name for name in LOSSES.names() if LOSSES.owner(name).startswith("sslengine.")}
    # Of two more no quickstart is: several crops of SimCLR, several labels of an image.
    assert ours - passed == {
        "multicrop_simclr_info_nce_loss", "bce_logits_multiple_output_single_target",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("run", "change", "said"),
    [
        ("moco", "LOSS.moco_loss.embedding_dim=99", r"config.LOSS.moco_loss: .*\(2, 128\)"),
        ("npid", "LOSS.nce_loss_with_memory.memory_params.embedding_dim=99",
         r"config.LOSS.nce_loss_with_memory: .*\(2, 128\).*config.MODEL.HEAD.PARAMS"),
        ("byol", "MODEL.HEAD.PARAMS=[[mlp,{dims:[auto,7]}]]", r"predictor_head .*HEAD.PARAMS"),
        ("simclr", "DATA.TRAIN.COLLATE_FUNCTION=default_collate", r"views of one image .*simclr_collator"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_go_with_its_method(run: str, change: str, said: str) -> None:
    config = resolve([f"config=quickstart/{run}", f"config.{change}"])
    with pytest.raises(ConfigError, match=rf"(?s){said}"):
        expect_fitting_shapes(config.config)


@dataclass
class WidthOptions:
    width: int = 9


@register_loss("preflight_test_loss", options=WidthOptions)
class _OneWidth(Method):
    def __init__(self, options: WidthOptions, run: Any) -> None:
        super().__init__()
        self.predictor = nn.Linear(options.width, 4)

    def forward(self, output: Any, sample: Any, step: Step) -> Any:
        return self.predictor(output).square().mean()


@register_loss("preflight_test_late_loss")
class _Late(Method):
    def __init__(self, run: Any) -> None:
        super().__init__()

    def forward(self, output: Any, sample: Any, step: Step) -> Any:
        raise TrainingError("before_phase has not been called, whatever the shape")


def test_a_method_of_ones_own_has_its_key() -> None:
    with pytest.raises(
        ConfigError,
        match="config.LOSS.preflight_test_loss: _OneWidth cannot take .* shape .4, 8.: ",
    ):
        _expect(LOSS={"name": "preflight_test_loss"})
    _expect(LOSS={"name": "preflight_test_loss", "preflight_test_loss": {"width": 8}})
    _expect(LOSS={"name": "preflight_test_late_loss"})  # of what it says here nothing is known


@register_loss("preflight_test_lazy_loss")
class _Lazy(Method):
    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.LazyLinear(4)

    def forward(self, output: Any, sample: Any, step: Step) -> Any:
        return self.predictor(output).mean()


def test_a_lazy_module_is_named() -> None:
    """In a head as in a method: an optimizer and ranks need its shape before the first batch."""
    for known in ({}, FILES):
        with pytest.raises(
            ConfigError, match=r"loss\.predictor\.bias, loss\.predictor\.weight: a lazy"
        ):
            _expect(LOSS={"name": "preflight_test_lazy_loss"}, **known)


@register_loss("preflight_test_stopping_loss")
class _Stopping(Method):
    passed: ClassVar[list[str]] = []

    def forward(self, output: Any, sample: Any, step: Step) -> Any:
        breakpoint()
        self.passed.append(output.device.type)
        return output.mean()


def test_a_breakpoint_does_not_stop_on_tensors_without_values() -> None:
    hook = sys.breakpointhook
    _expect(LOSS={"name": "preflight_test_stopping_loss"})
    assert _Stopping.passed == ["meta"]
    assert sys.breakpointhook is hook


ALL: dict[str, Any] = {
    **SHAPES, "OPTIMIZER__num_epochs": 1, "HOOKS__ONLINE_EVAL": ONLINE,
}  # fmt: skip
LABELLED: dict[str, Any] = {
    "TEST_MODEL": True,
    "METERS": {
        "names": ["accuracy_list_meter", "mean_ap_list_meter"],
        "accuracy_list_meter": {"topk_values": [1, 5], "meter_names": ["res5", "lr 0.1"],
                                "num_meters": 2},
    },
}  # fmt: skip
WHERE = "config.CHECKPOINT.BEST.METRIC"


def test_short_names() -> None:
    assert full_metric_name("online.knn20") == "train.online.knn_20"
    assert full_metric_name("online.knn_5") == "train.online.knn_5"
    assert full_metric_name("train.online.knn1") == "train.online.knn_1"
    assert full_metric_name("online.rankme") == "train.online.rankme"
    assert full_metric_name("test.knn20") == "test.knn20"


@pytest.mark.slow
def test_all_that_a_run_reports_may_be_named(tmp_path: Path) -> None:
    """The results in the manifest of a run's checkpoint: each is a known name."""
    trained(tmp_path, **ALL)
    (path,) = (tmp_path / "checkpoints").glob("*.json")
    names = [name for name, _ in leaves(json.loads(path.read_text())["results"])]
    assert {"train.online.knn_5", "train.trunk_rank"} <= {*names}
    for name in names:
        expect_known_metrics(resolved(**ALL, CHECKPOINT__BEST={"METRIC": name}).config)


@pytest.mark.parametrize(
    ("changes", "name", "hint"),
    [
        (ALL, "online.knn2", "Did you mean 'train.online.knn_"),
        (ALL, "online.knn_2O", "Did you mean"),
        (ALL, "train.online.rnkme", "Did you mean 'train.online.rankme'"),
        (SHAPES, "online.knn20", "Known: "),  # HOOKS.ONLINE_EVAL is off
        (ALL, "test.loss", "no test phases"),
        (LABELLED, "test.accuracy_list_meter.top_1.0", "Did you mean"),
        (LABELLED, "test.accuracy_list_meter.top_2.res5", "top_1.res5'"),
        (LABELLED, "test.accuracy_list_meter.top_1", "top_1.res5'"),
        (LABELLED, "test.mean_ap_list_meter.map.0", "Did you mean 'test.mean_ap_list_meter.mAP.0'"),
    ],
)
def test_a_name_that_the_run_will_not_report(
    changes: dict[str, Any], name: str, hint: str, tmp_path: Path
) -> None:
    """Nothing is launched."""
    run = resolved(**changes, CHECKPOINT={"BEST": {"METRIC": name}, "DIR": str(tmp_path / "run")})
    with pytest.raises(ConfigError, match=f"{WHERE}: ") as caught:
        run_all([run])
    assert hint in str(caught.value)
    assert not (tmp_path / "run").exists()
    stopping = resolved(**changes, HOOKS__EARLY_STOPPING={"MONITOR": name})
    with pytest.raises(ConfigError, match=r"config.HOOKS.EARLY_STOPPING.MONITOR: "):
        expect_known_metrics(stopping.config)
