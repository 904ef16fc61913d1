"""What follows from a config's other values, and from the run: facts, rules, back-ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sslengine import (
    catalog,  # noqa: F401 - declares the names that ship with sslengine
    data,  # noqa: F401 - declares the back-ends
)
from sslengine.config import facts
from sslengine.config.compose import Assignment, Composition
from sslengine.config.facts import RunFacts, run_facts, views_per_image
from sslengine.config.files import Layer
from sslengine.config.resolve import Resolved, freeze, resolve, resolve_dict
from sslengine.config.stored import as_stored, changes
from sslengine.errors import ConfigError
from tests.config.recipes import recipe, resolved


def _derived(run: Resolved) -> dict[str, str]:
    return {
        path.removeprefix("config."): origin
        for path, origin in run.origins.items()
        if origin.startswith("derived: ")
    }


def test_the_runs_folder_has_the_configs_name_unless_it_is_given() -> None:
    assert resolve_dict(recipe(), name="pretrain/x").config.CHECKPOINT.DIR == "runs/pretrain/x"
    given = resolve_dict(recipe(CHECKPOINT__DIR="."), name="pretrain/x")
    assert given.config.CHECKPOINT.DIR == "."
    assert "CHECKPOINT.DIR" not in _derived(given)


def test_the_current_folder_of_a_file_is_vissls_default(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        f"# @package _global_\nconfig: {json.dumps(recipe(CHECKPOINT__DIR='.'))}"
    )
    of_file = resolve(["config=mine"], [str(tmp_path)])
    assert of_file.config.CHECKPOINT.DIR == "runs/mine"
    said = resolve(["config=mine", "config.CHECKPOINT.DIR=."], [str(tmp_path)])
    assert said.config.CHECKPOINT.DIR == "."


def test_a_cpu_has_no_nccl() -> None:
    run = resolved(DISTRIBUTED__BACKEND="nccl")
    assert run.config.DISTRIBUTED.BACKEND == "gloo"
    assert _derived(run)["DISTRIBUTED.BACKEND"] == "derived: nccl requires GPUs"
    assert (
        resolved(DISTRIBUTED__BACKEND="nccl", MACHINE__DEVICE="gpu").config.DISTRIBUTED.BACKEND
        == "nccl"
    )
    assert resolved(MACHINE__DEVICE="mps").config.DISTRIBUTED.BACKEND == "gloo"


def test_processes_on_apples_gpu_cannot_exchange_tensors() -> None:
    message = r"config.MACHINE.DEVICE: .* \(mps\), and this run has 2. Set .*NUM_PROC_PER_NODE=1"
    with pytest.raises(ConfigError, match=message):
        resolved(MACHINE__DEVICE="mps", DISTRIBUTED__NUM_PROC_PER_NODE=2)


@pytest.mark.parametrize(
    ("given", "sources", "expected"),
    [
        ("standard", [], "sample_index"),
        ("zero", [], "zero"),
        ("standard", ["synthetic"], "standard"),
    ],
)
def test_without_label_sources_the_label_is_the_images_number(
    given: str, sources: list[str], expected: str
) -> None:
    run = resolved(DATA__TRAIN__LABEL_TYPE=given, DATA__TRAIN__LABEL_SOURCES=sources)
    assert expected == run.config.DATA.TRAIN.LABEL_TYPE


def test_the_old_name_of_meters() -> None:
    run = resolved(METERS__name="accuracy_list_meter")
    assert run.config.METERS.names == ["accuracy_list_meter"]
    assert resolved(METERS__name="").config.METERS.names == []


LR = "OPTIMIZER__param_schedulers__lr"


def test_the_learning_rate_follows_the_global_batch_and_accumulation() -> None:
    scaling = {"auto_scale": True, "base_value": 0.1, "base_lr_batch_size": 16}
    run = resolved(**{f"{LR}__auto_lr_scaling": scaling, "OPTIMIZER__accumulate": 8})
    lr = run.config.OPTIMIZER.param_schedulers.lr
    assert lr.start_value == pytest.approx(0.1 * 4 * 8 / 16)
    assert _derived(run)["OPTIMIZER.param_schedulers.lr.start_value"] == (
        "derived: auto_lr_scaling, batch 32 over 16"
    )


def test_heads_follow_the_trunks_rate_unless_they_have_their_own() -> None:
    schedulers = resolved().config.OPTIMIZER.param_schedulers
    assert schedulers.lr_head == schedulers.lr
    own = {"name": "constant", "value": 3.0}
    run = resolved(
        OPTIMIZER__head_optimizer_params={"use_different_lr": True},
        OPTIMIZER__param_schedulers__lr_head=own,
    )
    assert run.config.OPTIMIZER.param_schedulers.lr_head.value == 3.0


def test_heads_follow_the_trunks_weight_decay_unless_they_have_their_own() -> None:
    run = resolved(OPTIMIZER__weight_decay=0.5)
    assert run.config.OPTIMIZER.head_optimizer_params.weight_decay == 0.5
    own = {"use_different_wd": True, "weight_decay": 0.25}
    run = resolved(OPTIMIZER__weight_decay=0.5, OPTIMIZER__head_optimizer_params=own)
    assert run.config.OPTIMIZER.head_optimizer_params.weight_decay == 0.25


def test_a_method_derives_its_own_options() -> None:
    name = "multicrop_simclr_info_nce_loss"
    views = [{"name": "ImgReplicatePil", "num_times": 3}, {"name": "ToTensor"}]
    run = resolved(
        LOSS__name=name,
        DATA__TRAIN__TRANSFORMS=views,
        DATA__TRAIN__COLLATE_FUNCTION="multicrop_collator",
    )
    assert run.config.LOSS[name].num_crops == 3
    assert _derived(run)[f"LOSS.{name}.num_crops"] == f"derived: by {name} from the run"


@pytest.mark.parametrize("step", ["loss_dict_train_step", "model_train_step"])
def test_a_model_that_gives_its_losses_needs_no_loss_and_takes_none(step: str) -> None:
    tree = recipe(TRAINER__TRAIN_STEP_NAME=step)
    with pytest.raises(ConfigError, match=f"LOSS.name: {step} uses the losses that the model ret"):
        resolve_dict(tree)
    del tree["LOSS"]
    run = resolve_dict(tree)
    assert run.config.LOSS.name == ""
    assert _derived(run)["LOSS.name"] == "derived: the model returns its losses"


def test_other_steps_need_a_loss() -> None:
    with pytest.raises(ConfigError, match=r"LOSS.name: standard_train_step requires a loss"):
        resolved(LOSS__name="")


def test_meters_have_an_output_for_each_evaluated_feature() -> None:
    """VISSL's linear benchmark of ImageNet asks for 5 of its 7 features."""
    pooled = [["res4", ["Identity", []]], ["res5avg", ["Identity", []]]]
    settings = {"EVAL_MODE_ON": True, "FREEZE_TRUNK_ONLY": True}
    settings["LINEAR_EVAL_FEAT_POOL_OPS_MAP"] = [*pooled, pooled[-1]]
    heads = [["eval_mlp", {"in_channels": width, "dims": [width, 3]}] for width in (16, 32, 32)]
    changes = {"MODEL__FEATURE_EVAL_SETTINGS": settings, "MODEL__HEAD__PARAMS": heads}
    for given in ({"num_meters": 2, "topk_values": [1, 2]}, {}):
        meters = {"name": "accuracy_list_meter", "accuracy_list_meter": given}
        run = resolved(**changes, METERS=meters, LOSS={"name": "CrossEntropyLoss"})
        assert run.config.METERS.accuracy_list_meter == {
            **given, "num_meters": 3, "meter_names": ["res4", "res5avg", "res5avg_1"],
        }  # fmt: skip
    named = {"num_meters": 3, "meter_names": ["a", "b", "c"]}
    meters = {"names": ["accuracy_list_meter"], "accuracy_list_meter": named}
    run = resolved(**changes, METERS=meters, LOSS={"name": "CrossEntropyLoss"})
    assert run.config.METERS.accuracy_list_meter == named


# ---- facts


def test_facts_of_a_config() -> None:
    facts = run_facts(resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__NUM_PROC_PER_NODE=3).config)
    assert facts == RunFacts(
        world_size=6, batch_size_per_replica=4, views_per_image=2,
        heads=(("mlp", {"dims": [32, 8]}),), collator="simclr_collator", label_type="sample_index",
    )  # fmt: skip
    assert facts.global_batch_size == 24
    assert facts.with_data(100).num_train_samples == 100


def test_the_modules_of_nested_heads() -> None:
    heads = [[["mlp", {"dims": [64, 8]}], ["identity", {}]], ["mlp", {"dims": [64, 2]}]]
    facts = run_facts(resolved(MODEL__HEAD={"PARAMS": heads}).config)
    assert [name for name, _ in facts.heads] == ["mlp", "identity", "mlp"]
    assert facts.head("mlp") == {"dims": [64, 8]}
    assert facts.head("eval_mlp") == {}


def test_views_multiply_and_most_transforms_make_none() -> None:
    assert views_per_image([]) == 1
    assert views_per_image([{"name": "ToTensor"}, {"name": "ImgReplicatePil", "num_times": 3}]) == 3
    replicate = {"name": "ImgReplicatePil", "indices": [0]}
    assert views_per_image([replicate, replicate]) == 4


# ---- fast


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(facts, "find_spec", lambda name: None if name in names else object())
    return names


def test_what_there_is_has_nothing_against_it(missing: list[str]) -> None:
    assert [facts.why_not(name) for name in ("auto", "pil", "numba")] == [""] * 3
    missing.append("numba")
    assert facts.why_not("pil") == ""


def test_what_is_missing_is_told_with_the_command(missing: list[str]) -> None:
    missing += ["numba", "simplejpeg"]
    assert facts.why_not("numba") == (
        "numba requires numba and simplejpeg: pip install 'sslengine[fast]'. Or choose pil, which "
        "requires no other package."
    )


@pytest.mark.parametrize("name", facts.REMOVED)
def test_a_back_end_that_was_removed_is_replaced_with_a_warning(name: str) -> None:
    run = resolved(DATA__AUGMENT_BACKEND=name)
    (warning,) = run.warnings
    assert warning.startswith(f"config.DATA.AUGMENT_BACKEND: {name} ")
    assert run.config.DATA.AUGMENT_BACKEND == "auto"


def test_a_run_that_began_with_it_resumes() -> None:
    run = resolved(DATA__AUGMENT_BACKEND="device")
    now = as_stored(run.config, run.texts)
    now["DATA"]["AUGMENT_BACKEND"] = "device"
    before = yaml.safe_dump({"config": now})
    now["DATA"]["AUGMENT_BACKEND"] = "auto"
    assert changes(before, now, run.origins) == []


# ---- length


def decided(*files: dict[str, Any], command: dict[str, Any] | None = None) -> Resolved:
    layers = [Layer(f"{n}.yaml", {"config": {"OPTIMIZER": each}}) for n, each in enumerate(files)]
    arguments = [
        Assignment(f"config.OPTIMIZER.{key}", value, f"{key}={value}")
        for key, value in (command or {}).items()
    ]
    return freeze(Composition(layers, arguments, "test"))


def length(*files: dict[str, Any], command: dict[str, Any] | None = None) -> tuple[Any, Any]:
    optimizer = decided(*files, command=command).config.OPTIMIZER
    return optimizer.num_epochs, optimizer.num_iterations


EPOCHS, ITERATIONS = {"num_epochs": 7}, {"num_iterations": 100}


def test_the_later_place_counts() -> None:
    assert length({}) == (90, None)
    assert length(EPOCHS, ITERATIONS) == (None, 100)
    assert length(ITERATIONS, EPOCHS) == (7, None)
    assert length(EPOCHS, command=ITERATIONS) == (None, 100)
    assert length({"num_iterations": 5}, EPOCHS, command=ITERATIONS) == (None, 100)
    assert length(ITERATIONS, command=EPOCHS) == (7, None)


def test_twice_in_one_place() -> None:
    with pytest.raises(ConfigError, match=r"given twice.*\(7\).*\(100\), by 0.yaml. Set one"):
        decided({**EPOCHS, **ITERATIONS})
    with pytest.raises(ConfigError, match="given twice.* by command line"):
        decided(command={**EPOCHS, **ITERATIONS})


def test_neither() -> None:
    with pytest.raises(ConfigError, match=r"OPTIMIZER.num_epochs: the run has no length"):
        decided({"num_epochs": None})
