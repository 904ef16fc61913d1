from __future__ import annotations

from typing import Any

import pytest

from sslengine import catalog  # noqa: F401
from sslengine.config.compose import Assignment, Composition
from sslengine.config.files import Layer
from sslengine.config.merge import Merged, merge
from sslengine.errors import ConfigError


def _merge(*trees: dict[str, Any], values: dict[str, Any] | None = None) -> Merged:
    layers = [Layer(f"file{i}.yaml", {"config": tree}) for i, tree in enumerate(trees)]
    assignments = [
        Assignment(key.lstrip("+"), value, f"{key}={value}", key[0] == "+")
        for key, value in (values or {}).items()
    ]
    return merge(Composition(layers, assignments, "x"))


def _problem(*trees: dict[str, Any], values: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        _merge(*trees, values=values)
    return str(error.value)


def test_later_layers_win_and_each_value_knows_where_it_is_from() -> None:
    merged = _merge(
        {"SEED_VALUE": 1, "OPTIMIZER": {"num_epochs": 5}},
        {"OPTIMIZER": {"num_epochs": 7}},
        values={"config.SEED_VALUE": 3},
    )
    config = merged.root.config
    assert (config.SEED_VALUE, config.OPTIMIZER.num_epochs) == (3, 7)
    assert merged.origins["config.SEED_VALUE"] == "command line"
    assert merged.origins["config.OPTIMIZER.num_epochs"] == "file1.yaml"
    assert "config.LOG_FREQUENCY" not in merged.origins


def test_lists_are_replaced_and_their_entries_can_be_set() -> None:
    transforms = [{"name": "ToTensor"}, {"name": "RandomResizedCrop", "size": 8}]
    config = _merge(
        {"DATA": {"TRAIN": {"TRANSFORMS": [{"name": "Resize"}]}}},
        {"DATA": {"TRAIN": {"TRANSFORMS": transforms, "DATA_SOURCES": ["a"]}}},
        values={
            "config.DATA.TRAIN.TRANSFORMS.1.size": 16,
            "config.DATA.TRAIN.TRANSFORMS.1.scale": [0.2, 1],
            "config.DATA.TRAIN.DATA_SOURCES.0": "b",
        },
    ).root.config
    assert config.DATA.TRAIN.TRANSFORMS == [
        {"name": "ToTensor"},
        {"name": "RandomResizedCrop", "size": 16, "scale": [0.2, 1]},
    ]
    assert config.DATA.TRAIN.DATA_SOURCES == ["b"]


def test_values_take_their_fields_type() -> None:
    config = _merge({"OPTIMIZER": {"momentum": 1, "weight_decay": "1e-4"}}).root.config
    assert config.OPTIMIZER.momentum == 1.0
    assert isinstance(config.OPTIMIZER.momentum, float)
    assert config.OPTIMIZER.weight_decay == 1e-4


def test_an_empty_section_sets_nothing() -> None:
    assert _merge({"MACHINE": None}).root.config.MACHINE.DEVICE == "gpu"


def test_interpolations_are_resolved() -> None:
    config = _merge({"SEED_VALUE": 4, "LOG_FREQUENCY": "${config.SEED_VALUE}"}).root.config
    assert config.LOG_FREQUENCY == 4
    assert "NOT_THERE" in _problem({"LOG_FREQUENCY": "${config.NOT_THERE}"})


def test_the_chosen_components_options_are_there_with_their_defaults() -> None:
    config = _merge({"LOSS": {"name": "simclr_info_nce_loss"}}).root.config
    assert config.LOSS.simclr_info_nce_loss.temperature == 0.1
    config = _merge({}, values={"config.LOSS.name": "simclr_info_nce_loss"}).root.config
    assert config.LOSS.simclr_info_nce_loss.temperature == 0.1
    config = _merge({"LOSS": {"name": "sslengine.methods.simclr:SimCLRLoss"}}).root.config
    assert config.LOSS.SimCLRLoss.temperature == 0.1


def test_options_of_another_component_are_checked_too() -> None:
    config = _merge({"LOSS": {"simclr_info_nce_loss": {"temperature": 0.3}}}).root.config
    assert config.LOSS.simclr_info_nce_loss.temperature == 0.3
    assert "Did you mean 'temperature'" in _problem(
        {"LOSS": {"simclr_info_nce_loss": {"temprature": 0.3}}}
    )


def test_a_component_without_options_class_has_a_free_section() -> None:
    config = _merge({"LOSS": {"CrossEntropyLoss": {"ignore_index": -1}}}).root.config
    assert config.LOSS.CrossEntropyLoss == {"ignore_index": -1}


def test_a_section_that_is_null_by_default() -> None:
    tree = {"OPTIMIZER": {"param_schedulers": {"weight_decay": {"name": "cosine"}}}}
    key = "config.OPTIMIZER.param_schedulers.weight_decay"
    merged = _merge(tree, values={f"{key}.start_value": 0.04})
    decay = merged.root.config.OPTIMIZER.param_schedulers.weight_decay
    assert (decay.name, decay.start_value) == ("cosine", 0.04)
    assert merged.origins[f"{key}.name"] == "file0.yaml"
    assert (
        _merge(tree, values={key: None}).root.config.OPTIMIZER.param_schedulers.weight_decay is None
    )
    assert "Did you mean 'start_value'" in _problem(values={f"{key}.start_vale": 1})


def test_all_mistakes_are_told_at_once() -> None:
    text = _problem({"A": 1, "OPTIMIZER": {"num_epochs": "x"}}, values={"config.B": 2})
    assert len(text.splitlines()) == 3
    many = _problem({f"KEY{i}": i for i in range(20)})
    assert many.splitlines()[-1] == "... and 8 more"


def test_an_argument_may_be_next_to_the_name_of_its_component() -> None:
    loss = {"name": "dino_loss", "momentum": 0.9, "dino_loss": {"student_temp": 0.2}}
    merged = _merge({"LOSS": loss}, values={"config.LOSS.ema_center": 0.5})
    options = merged.root.config.LOSS.dino_loss
    assert (options.momentum, options.student_temp, options.ema_center) == (0.9, 0.2, 0.5)
    text = _problem({"LOSS": {"name": "dino_loss", "momentun": 0.9}})
    assert text.startswith("config.LOSS.dino_loss.momentun: unknown key. Did you mean 'momentum'")


def test_plus_adds_what_code_of_ones_own_reads() -> None:
    merged = _merge({}, values={"+config.MINE.DEEP": 3, "+config.DATA.TRAIN.MY_KEY": 4})
    assert merged.root.config.MINE.DEEP == 3
    assert merged.root.config.DATA.TRAIN.MY_KEY == 4
    assert [w.split()[0] for w in merged.warnings] == ["config.MINE", "config.DATA.TRAIN.MY_KEY"]
    assert _merge({}, values={"+config.SEED_VALUE": 3}).warnings == []


def test_a_section_beside_config_is_told_and_passed_over() -> None:
    """VISSL has such a file, and never noticed."""
    layer = Layer("odd.yaml", {"config": {"SEED_VALUE": 4}, "DISTRIBUTED": {"NUM_NODES": 4}})
    merged = merge(Composition([layer], [], "test"))
    assert merged.root.config.DISTRIBUTED.NUM_NODES == 1
    (warning,) = merged.warnings
    assert warning == (
        "DISTRIBUTED has no effect: it is at the top level, not below `config` (odd.yaml)"
    )


def test_arguments_belong_to_the_component_that_was_named_with_them() -> None:
    """Another one gets those of its layer alone; where none was named before, all stay."""
    name, arguments = "COLLATE_FUNCTION", "COLLATE_FUNCTION_PARAMS"

    def found(*splits: dict[str, Any], **values: Any) -> Any:
        said = {f"config.DATA.TRAIN.{key}": value for key, value in values.items()}
        train = _merge(*({"DATA": {"TRAIN": each}} for each in splits), values=said)
        return train.root.config.DATA.TRAIN[arguments]

    masked = {name: "spread_masks_collator", arguments: {"patch_size": 6, "shares": [0.2, 0.3]}}
    mixed, beta = "multicrop_mixup_collator", {"beta": 0.5}
    assert found(masked, {name: "default_collate"}) == {}
    assert found(masked, {arguments: beta, name: mixed}) == beta
    assert found(masked, {name: mixed, arguments: beta}) == beta
    assert found(masked, **{f"{arguments}.beta": 0.5, name: mixed}) == beta
    assert found(masked, **{name: masked[name]}) == masked[arguments]
    assert found({arguments: beta}, {name: mixed}) == beta


@pytest.mark.parametrize("typed", [False, True])
def test_the_options_of_a_loss_from_outside_go_with_it(typed: bool) -> None:
    """They are known by its name alone. What was typed for it is told."""
    loss = {"name": "outside:NNCLR", "NNCLR": {"temperature": 0.3}}
    values = {"config.LOSS.NNCLR.temperature": 0.2} if typed else {}
    merged = _merge({"LOSS": loss}, values={"config.LOSS.name": "CrossEntropyLoss", **values})
    assert set(merged.root.config.LOSS) == {"name", "CrossEntropyLoss"}
    assert [each.split()[0] for each in merged.warnings] == ["config.LOSS.NNCLR"] * typed


def test_a_name_alone_is_an_entry_without_arguments() -> None:
    relu, mlp = "torch.nn:ReLU", ["mlp", {"dims": [8, 8]}]
    config = _merge(
        {"DATA": {"TRAIN": {"TRANSFORMS": ["ToTensor", {"name": "Resize", "size": 8}]}},
         "MODEL": {"HEAD": {"PARAMS": [mlp, relu, [mlp, relu]]}}},
        values={"config.DATA.TRAIN.TRANSFORMS.1": "PILToTensor"},
    ).root.config  # fmt: skip
    assert config.DATA.TRAIN.TRANSFORMS == [{"name": "ToTensor"}, {"name": "PILToTensor"}]
    assert [mlp, [relu, {}], [mlp, [relu, {}]]] == config.MODEL.HEAD.PARAMS
