"""VISSL's keys without effect: each is told once, or refused, wherever it is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine import catalog, registry
from sslengine.absent import DEAD_KEYS, NAMES, dead_key, instead_of
from sslengine.command.list import main
from sslengine.config.compose import shipped_configs
from sslengine.config.resolve import Resolved, resolve
from sslengine.config.sections import schema
from sslengine.errors import ConfigError
from tests.config.recipes import recipe, resolved

# Of each dead key a path that it stands for: of the training set, of the recipe's loss.
KEYS = {
    pattern.replace("DATA.*", "DATA.TRAIN").replace("LOSS.*", "LOSS.simclr_info_nce_loss"): key
    for pattern, key in DEAD_KEYS.items()
}
REFUSED = [path for path, key in KEYS.items() if key.refused]
AT_ONCE = 12  # as many mistakes are told
# Mistakes in options of components are told after those in sslengine's own keys.
OF_LOSSES = [path for path in REFUSED if path.startswith("LOSS.")]
OWN = [path for path in REFUSED if path not in OF_LOSSES]
TOLD = [OF_LOSSES, *(OWN[first : first + AT_ONCE] for first in range(0, len(OWN), AT_ONCE))]


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {path.replace(".", "__"): value for path, value in values.items()}


def test_a_key_without_effect_is_a_warning_that_says_what_to_do() -> None:
    warned = [path for path in KEYS if path not in REFUSED]
    warnings = resolved(**given(dict.fromkeys(warned, "anything"))).warnings
    assert len(warnings) == len(warned) > 50
    for path in warned:
        (found,) = (each for each in warnings if each.startswith(f"config.{path} has no effect: "))
        assert KEYS[path].instead in found


@pytest.mark.parametrize("paths", TOLD, ids=lambda paths: paths[0])
def test_what_cannot_be_done_is_refused(paths: list[str]) -> None:
    with pytest.raises(ConfigError) as told:
        resolved(**given(dict.fromkeys(paths, "anything")))
    for path in paths:
        (line,) = (each for each in str(told.value).splitlines() if f"config.{path}: " in each)
        assert f": expected {KEYS[path].accepted[0]!r}" in line or len(KEYS[path].accepted) != 1
        assert KEYS[path].instead in line


def test_values_that_ask_for_what_is_done_anyway_are_accepted() -> None:
    for number in range(3):
        values = {path: key.accepted[number] for path, key in KEYS.items()
                  if len(key.accepted) > number}  # fmt: skip
        assert resolved(**given(values)).warnings == ()


def _from_files(folder: Path, *arguments: str, **changes: Any) -> Resolved:
    tree = {"config": recipe(**changes)}
    (folder / "own.yaml").write_text("# @package _global_\n" + yaml.safe_dump(tree))
    return resolve(["config=own", *arguments], [str(folder)])


def test_a_key_set_in_several_places_is_told_once(tmp_path: Path) -> None:
    run = _from_files(
        tmp_path, "config.DISTRIBUTED.INIT_METHOD=env", DISTRIBUTED__INIT_METHOD="tcp"
    )
    (warning,) = run.warnings
    assert "own.yaml" in warning


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("config.HOOKS.EMA_MODEL.DECAY=0.5", "config.HOOKS.EMA_MODEL.DECAY has no effect"),
        ("config.LOSS.simclr_info_nce_loss.buffer_params.embedding_dim=3",
         "config.LOSS.simclr_info_nce_loss.buffer_params has no effect"),
        ("config.NEAREST_NEIGHBOR.USE_CUDA=false", "config.NEAREST_NEIGHBOR.USE_CUDA has no"),
    ],
)  # fmt: skip
def test_on_the_command_line(tmp_path: Path, argument: str, told: str) -> None:
    (warning,) = _from_files(tmp_path, argument).warnings
    assert warning.startswith(told)
    assert "command line" in warning


@pytest.mark.parametrize(
    ("key", "value"),
    [("HOOKS__EMA_MODEL__DECAI", 0.5), ("LOSS__simclr_info_nce_loss__buffer_parms", {"x": 1})],
)
def test_a_misspelled_dead_key_is_an_unknown_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        resolved(**{key: value})


def test_no_key_of_the_table_is_in_the_schema() -> None:
    """Or it would be accepted there, and do nothing."""
    assert catalog
    for pattern in DEAD_KEYS:
        if pattern.startswith("LOSS.*"):
            continue  # a key of one loss may be dead in another
        path = pattern.replace("*", "TRAIN")
        assert OmegaConf.select(schema(), path) is None, path
        assert dead_key(f"config.{path}") is DEAD_KEYS[pattern]


SHIPPED = sorted(
    path.relative_to(shipped_configs()).with_suffix("").as_posix()
    for folder in ("quickstart", "pretrain")
    for path in (shipped_configs() / folder).rglob("*.yaml")
)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_set_no_key_without_effect(name: str) -> None:
    assert not [each for each in resolve([f"config={name}"]).warnings if "no effect" in each]


def names_as_markdown() -> str:
    """The table of names as docs/vissl_differences.md has it."""
    lines = ["| kind | name | what to use |", "|---|---|---|"]
    for kind, names in NAMES.items():
        lines.extend(f"| {kind} | `{name}` | {instead} |" for name, instead in names.items())
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """The table of keys as docs/vissl_differences.md has it."""
    lines = ["| key | accepted silently | another value | what to do |", "|---|---|---|---|"]
    for path, key in DEAD_KEYS.items():
        silent = ", ".join(f"`{each!r}`" for each in key.accepted) or "-"
        lines.append(
            f"| `{path}` | {silent} | {'an error' if key.refused else 'a warning'} | {key.instead} |"
        )
    return "\n".join(lines) + "\n"


def test_the_page_has_the_tables() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "vissl_differences.md").read_text()
    names, _, keys = page.partition("## Keys without effect\n")
    assert names.rstrip().endswith(names_as_markdown().rstrip())
    assert keys.endswith(as_markdown())


# Of VISSL's registries at its last commit, those that sslengine knows under no such name.
ABSENT = {
    "MODEL__TRUNK__NAME": ["alexnet_bvlc", "alexnet_deepcluster", "classy_vit"],
    "LOSS__name": ["swav_momentum_loss", "dino_distillation_loss", "ibot_distillation_loss",
                   "msn_distillation_loss", "swav_distillation_loss"],
    "METERS__name": ["mean_ap_meter"],
    "TRAINER__TASK_NAME": ["self_supervision_sdp_task"],
    "DATA__TRAIN__DATA_SOURCES": ["airstore", "everstore"],
    "OPTIMIZER__name": ["zero"],
    "MODEL__HEAD__PARAMS": ["eval_mlp_pooled", "ibot_distillation_head", "mlp_res",
                            "vision_transformer_head"],
    "DATA__TRAIN__TRANSFORMS": ["SSLTransformsWrapper", "imagenet_autoaugment", "tuple_to_map"],
}  # fmt: skip


def test_a_name_that_is_absent_says_what_to_use_and_nothing_alike() -> None:
    forms: dict[str, Callable[[str], Any]] = {
        "SOURCES": lambda name: [name],
        "TRANSFORMS": lambda name: [{"name": name}],
        "PARAMS": lambda name: [[name, {}]],
    }
    kinds = []
    for key, name in [(key, name) for key, names in ABSENT.items() for name in names]:
        value = forms.get(key.rpartition("_")[2], str)(name)
        with pytest.raises(ConfigError) as told:
            resolved(**{key: value})
        (line,) = [each for each in str(told.value).splitlines() if repr(name) in each]
        assert line.startswith(f"config.{key.replace('__', '.')}"), line
        assert "Did you mean" not in line
        kinds.append(next(kind for kind in NAMES if instead_of(kind, name)))
        assert instead_of(kinds[-1], name) in line
    assert {*kinds} == {*NAMES}


def test_the_section_of_an_absent_loss_is_a_warning_and_distillation_an_error() -> None:
    section = {"LOSS__swav_momentum_loss": {"momentum": 0.99}}
    (warning,) = resolved(**section).warnings
    assert warning.startswith("config.LOSS.swav_momentum_loss has no effect: take swav_loss")
    with pytest.raises(ConfigError) as told:
        resolved(DISTILLATION={"TEACHER_MODEL": {"MODEL": {}}})
    assert "config.DISTILLATION: " in str(told.value)
    assert "DISTRIBUTED" not in str(told.value)


def test_nothing_that_is_here_is_in_the_table() -> None:
    assert catalog
    for each in vars(registry).values():
        for name in each.names() if isinstance(each, registry.Registry) else ():
            assert not instead_of(each.kind, name), name


def test_the_list_has_names_and_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--vissl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(map(len, NAMES.values())) + len(DEAD_KEYS)
    assert any(each.startswith("trunk: classy_vit: ") for each in lines)
    assert any(each.startswith("key: DISTILLATION: ") for each in lines)
    with pytest.raises(SystemExit):
        main(["methods", "--vissl"])
