import sys
from pathlib import Path

import pytest
from torch import nn
from torchvision import transforms

from sslengine.errors import ConfigError, UnknownNameError
from sslengine.registry import (
    LOSSES,
    TRANSFORMS,
    Registry,
    component_key,
    import_dotted,
    load_plugins,
)


@pytest.fixture
def things() -> Registry[object]:
    return Registry("thing")


@pytest.fixture
def plugin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_registered_name_and_its_aliases_give_the_thing(things: Registry[object]) -> None:
    @things.register("one", "uno")
    class One:
        pass

    assert things.get("one") is One
    assert things.get("uno") is One
    assert things.names() == ["one", "uno"]
    assert "uno" in things


def test_two_owners_of_a_name_are_refused(things: Registry[object]) -> None:
    class One:
        pass

    class Two:
        __module__ = "elsewhere"

    things.register("one")(One)
    with pytest.raises(
        ConfigError, match=r"thing name 'one' is used by .*test_registry; elsewhere"
    ):
        things.register("one")(Two)


def test_one_module_cannot_give_a_name_to_two_things(things: Registry[object]) -> None:
    class One:
        pass

    class Two:
        pass

    things.register("one")(One)
    with pytest.raises(ConfigError, match="registers the thing name 'one' twice"):
        things.register("one")(Two)


def test_a_miss_names_the_nearest_and_all_known(things: Registry[object]) -> None:
    things.register("standard_step")(object())
    with pytest.raises(UnknownNameError) as error:
        things.get("standart_step", "config.STEP")
    text = str(error.value)
    assert "config.STEP: there is no thing named 'standart_step'" in text
    assert "Did you mean 'standard_step'?" in text
    assert "config.PLUGINS" in text


def test_a_declared_module_is_imported_only_when_its_name_is_asked_for(
    things: Registry[object], plugin_folder: Path
) -> None:
    (plugin_folder / "lazy_owner.py").write_text(
        "from tests.test_registry import LAZY\nLAZY.register('late')(lambda: 42)\n"
    )
    LAZY.declare("lazy_owner", "late")
    assert LAZY.names() == ["late"]
    assert "lazy_owner" not in sys.modules
    assert LAZY.get("late")() == 42


LAZY: Registry = Registry("lazy thing")


def test_a_declared_name_cannot_be_taken_by_another_module(things: Registry[object]) -> None:
    things.declare("some.module", "name")
    with pytest.raises(ConfigError, match="used by some.module"):
        things.register("name")(object())


def test_a_dotted_path_is_a_name_anywhere(things: Registry[object]) -> None:
    assert things.get("pathlib:Path") is Path


def test_options_come_with_the_name_the_alias_and_the_dotted_path(things: Registry[object]) -> None:
    class Options:
        pass

    things.register("a", "b", options=Options)(_Anything)
    assert things.options("a") is Options
    assert things.options("b") is Options
    assert things.options(f"{__name__}:_Anything") is Options


class _Anything:
    pass


@pytest.mark.parametrize(
    ("path", "named"), [("no_such_module:Name", "'no_such_module'"), ("pathlib:Pth", "'Path'")]
)
def test_a_dotted_path_that_leads_nowhere(path: str, named: str) -> None:
    with pytest.raises(UnknownNameError, match=f"^config.X: .*{named}"):
        import_dotted(path, "config.X")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_an_error_inside_the_users_module_is_told_with_its_place(
    plugin_folder: Path, source: str, said: str
) -> None:
    (plugin_folder / "has_an_error.py").write_text(source)
    for run in (
        lambda: import_dotted("has_an_error:Thing"),
        lambda: load_plugins(["has_an_error"]),
    ):
        with pytest.raises(ConfigError, match="importing 'has_an_error' fails") as told:
            run()
        assert said in str(told.value)
        assert "has_an_error.py, line" in str(told.value)
        assert told.value.__cause__ is not None


@pytest.mark.parametrize("module", ["nowhere_module", "./mine.py", "ends"])
def test_an_error_of_a_plugin_has_its_place_in_the_list(plugin_folder: Path, module: str) -> None:
    (plugin_folder / "ends.py").write_text("raise SystemExit(3)")
    with pytest.raises(ConfigError, match=f"^config.PLUGINS.1: importing '{module}' fails"):
        load_plugins(["pathlib", module])


def test_torch_losses_and_torchvision_transforms_are_known_by_their_own_names() -> None:
    assert LOSSES.get("CrossEntropyLoss") is nn.CrossEntropyLoss
    assert TRANSFORMS.get("RandomResizedCrop") is transforms.RandomResizedCrop
    with pytest.raises(UnknownNameError, match="Did you mean 'RandomResizedCrop'"):
        TRANSFORMS.get("RandomResizeCrop")
    with pytest.raises(UnknownNameError):
        LOSSES.get("Linear")


def test_the_key_of_a_components_options() -> None:
    assert component_key("simple_loss") == "simple_loss"
    assert component_key("pkg.module:MyLoss") == "MyLoss"
