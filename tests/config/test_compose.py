from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.config.compose import compose, search_folders, shipped_configs, sweep
from sslengine.errors import ConfigError

GLOBAL = "# @package _global_\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own tree, its files directly in it."""
    files = {
        "base.yaml": GLOBAL + "config:\n  LOG_FREQUENCY: 1\n  DATA: {PIN_MEMORY: false}\n",
        "models/big.yaml": GLOBAL + "engine_name: other\nconfig:\n  LOG_FREQUENCY: 2\n",
        "broken.yaml": GLOBAL + "config: [unclosed\n",
        "digits.yaml": f"{GLOBAL}config:\n  SEED_VALUE: {'1' * 5000}\n",
        "plugins.yaml": GLOBAL + "config:\n  PLUGINS: [one]\n",
    }
    root = tmp_path / "mine"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return root


def test_files_in_their_order_with_their_names(folder: Path) -> None:
    got = compose(["config=base", "+config/models=big"], [str(folder)])
    assert [(Path(layer.origin), layer.tree) for layer in got.layers] == [
        (Path("mine/base.yaml"), {"config": {"LOG_FREQUENCY": 1, "DATA": {"PIN_MEMORY": False}}}),
        (Path("mine/models/big.yaml"), {"engine_name": "other", "config": {"LOG_FREQUENCY": 2}}),
    ]
    assert got.name == "base"
    again = compose(["config=base.yaml", "+config/models=big"], [str(folder)])
    assert again == got


def test_a_folder_laid_out_as_vissls(folder: Path, tmp_path: Path) -> None:
    vissl = tmp_path / "vissl"
    (vissl / "config" / "pretrain").mkdir(parents=True)
    (vissl / "config" / "pretrain" / "x.yaml").write_text(GLOBAL + "config:\n  VERBOSE: true\n")
    got = compose(["config=pretrain/x"], [str(vissl)])
    assert got.layers[0].tree == {"config": {"VERBOSE": True}}
    assert got.layers[0].origin == "vissl/config/pretrain/x.yaml"


def test_values_come_typed_in_the_order_given(folder: Path) -> None:
    got = compose(
        ["config=base", "config.A=1", "+config.B.C=[1,x]", "config.E=null", "config.F='a b'"],
        [str(folder)],
    )  # fmt: skip
    assert [(a.path, a.value, a.may_be_new) for a in got.assignments] == [
        ("config.A", 1, False),
        ("config.B.C", [1, "x"], True),
        ("config.E", None, False),
        ("config.F", "a b", False),
    ]


def test_hydras_own_settings_are_not_values_of_ours(folder: Path) -> None:
    assert compose(["config=base", "hydra.verbose=true"], [str(folder)]).assignments == []


def test_the_last_to_set_a_key_may_have_set_its_section(folder: Path) -> None:
    got = compose(
        ["config=plugins", "config.LOSS={name: one, one: {k: 2}}", "config.LOSS={two: {}}"],
        [str(folder)],
    )
    assert got.last_value("config.LOSS.name") == "one"
    assert got.last_value("config.LOSS.one.k") == 2
    assert got.last_value("config.LOSSES") is None
    got = compose(
        ["config=plugins", "config.LOSS={name: one}", "config.LOSS.name=two"], [str(folder)]
    )
    assert got.last_value("config.LOSS.name") == "two"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no config is given"),
        (["config=bse"], "config=bse: there is no such config file. Did you mean 'base'"),
        (["config=base", "+config/models=bg"], "models=bg: there is no such .* mean 'models/big'"),
        (["config=base", "+config=plugins"], "config=base, .* Add others .*: .config/FOLDER=FILE"),
        (["config=broken"], "broken.yaml: not valid YAML"),
        (["config=base", "config.A"], "(?s)command line: .*Write KEY=VALUE"),
        (["config=digits"], "digits.yaml: not valid YAML"),
        (["config=base", f"config.A={'1' * 5000}"], "(?s)command line: .*Write KEY=VALUE"),
        (["config=base", "~config.D"], "command line: ~config.D: nothing can be deleted"),
        (["base.yaml"], "command line: 'base.yaml' is not KEY=VALUE. .*: config=base$"),
    ],
)  # fmt: skip
def test_what_cannot_be_composed(folder: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(arguments, [str(folder)])


def test_a_config_dir_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--config-dir nowhere"):
        search_folders(["nowhere"])


def test_the_users_folder_comes_before_the_local_one_and_ours(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    assert search_folders([str(folder)]) == [folder, tmp_path / "configs", shipped_configs()]


def test_sweeps_multiply() -> None:
    assert list(sweep(["config=a", "config.X=1,2", "config.Y=[1,2]", "config.Z=a,b"])) == [
        ["config=a", "config.X=1", "config.Y=[1,2]", "config.Z=a"],
        ["config=a", "config.X=1", "config.Y=[1,2]", "config.Z=b"],
        ["config=a", "config.X=2", "config.Y=[1,2]", "config.Z=a"],
        ["config=a", "config.X=2", "config.Y=[1,2]", "config.Z=b"],
    ]
    assert list(sweep(["config=a"])) == [["config=a"]]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that name others in every way there is. What they should give was asked of hydra, but
    for those without a header: their keys are of `config`, unless folders are named like sections."""
    files = {
        "base": GLOBAL + "config: {A: top}",
        "my/base": GLOBAL + "config: {A: my}",
        "my/child": GLOBAL + "defaults: [base]\nconfig: {B: 1}",
        "models/big": GLOBAL + "config: {M: big}",
        "models/small": GLOBAL + "config: {M: small}",
        "models/bare": "X: 1",
        "DATA/TRAIN/photos": "X: 1",
        "rooted": "defaults: [base]\nconfig: {B: 1}",
        "group": GLOBAL + "defaults: [{models: big}, _self_]\nconfig: {B: 1}",
        "both": GLOBAL + "defaults: [{models: [big, small]}]\nconfig: {B: 1}",
        "none": GLOBAL + "defaults: [{models: null}]\nconfig: {B: 1}",
        "over": GLOBAL + "defaults: [group, {override models: small}, _self_]\nconfig: {C: 1}",
        "absent": GLOBAL + "defaults: [{optional models: nowhere}, _self_]\nconfig: {B: 1}",
        "above": GLOBAL + "defaults: [_self_, /config/models/big]\nconfig: {B: 1}",
        "placed": GLOBAL + "defaults: [models/bare, {models@config.Z: bare}, models/bare@config.Y]",
        "header": "# @package config.Q\nX: 1",
        "nested": "# @package config.Q\ndefaults: [header]\nX: 2",
        "circle": GLOBAL + "defaults: [circle]",
        "lost": GLOBAL + "defaults: [base, models/bg]",
        "text": GLOBAL + "defaults: base",
        "odd": GLOBAL + "defaults: [{often models: big}]",
        "list": "- 1",
    }
    for name, text in files.items():
        file = tmp_path / "mine" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine"


@pytest.mark.parametrize(
    ("arguments", "trees"),
    [
        (["config=my/child"], [{"config": {"A": "top"}}, {"config": {"B": 1}}]),
        (["config=base", "+config/my=child"],
         [{"config": {"A": "top"}}, {"config": {"A": "my"}}, {"config": {"B": 1}}]),
        (["config=group"], [{"config": {"M": "big"}}, {"config": {"B": 1}}]),
        (["config=both"],
         [{"config": {"M": "big"}}, {"config": {"M": "small"}}, {"config": {"B": 1}}]),
        (["config=none"], [{"config": {"B": 1}}]),
        (["config=over"], [{"config": {"M": "small"}}, {"config": {"B": 1}}, {"config": {"C": 1}}]),
        (["config=absent"], [{"config": {"B": 1}}]),
        (["config=above"], [{"config": {"B": 1}}, {"config": {"M": "big"}}]),
        (["config=placed"],
         [{"config": {"X": 1}}, {"config": {"Z": {"X": 1}}}, {"config": {"Y": {"X": 1}}}, {}]),
        (["config=nested"], [{"config": {"Q": {"X": 1}}}, {"config": {"Q": {"X": 2}}}]),
        (["config=base", "+config/models=bare"],
         [{"config": {"A": "top"}}, {"config": {"X": 1}}]),
        (["config=base", "+config/DATA/TRAIN=photos"],
         [{"config": {"A": "top"}}, {"config": {"DATA": {"TRAIN": {"X": 1}}}}]),
        (["config=rooted"], [{"config": {"A": "top"}}, {"config": {"B": 1}}]),
        (["config=base", "+config/models@config.R=bare"],
         [{"config": {"A": "top"}}, {"config": {"R": {"X": 1}}}]),
    ],
)  # fmt: skip
def test_files_are_found_as_hydra_finds_them(
    tree: Path, arguments: list[str], trees: list[object]
) -> None:
    assert [layer.tree for layer in compose(arguments, [str(tree)]).layers] == trees


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config=circle"], "config=circle: `defaults` lists form a cycle"),
        (["config=lost"], "config/lost: /config/models/bg: there is no such .* mean 'models/big'"),
        (["config=text"], "text.yaml: defaults: expected a list of files, got 'base'"),
        (["config=odd"], r"odd.yaml: defaults.0: expected \[optional\] \[override\] FOLDER: NAME"),
        (["config=list"], "list.yaml: expected keys such as `config:`"),
        (["config=base", "config/models=big"], r"to add a file write \+config/models=FILE"),
        (["config=base", "~config/models"], r"to add a file write \+config/models=FILE"),
        (["config=base", "+config/models=null"], "expected the name of a file"),
    ],
)
def test_lists_of_files_that_are_wrong(tree: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(arguments, [str(tree)])
