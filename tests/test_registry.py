import sys
from pathlib import Path

import pytest
from torch import nn
from torchvision import transforms

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine import registry as module
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.registry import (
    LOSSES,
    TRANSFORMS,
    Registry,
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


def test_a_name_belongs_to_one_thing_of_one_module(things: Registry[object]) -> None:
    class One:
        pass

    class Two:
        __module__ = "elsewhere"

    class Three:
        pass

    things.register("one")(One)
    things.register("one")(One)  # its module was reloaded
    things.declare("some.module", "name")
    for name, taken in (("one", Two), ("one", Three), ("name", Three)):
        with pytest.raises(ConfigError, match=f"thing name '{name}'"):
            things.register(name)(taken)


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
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_error_of_the_users_module_is_told_with_both_places(
    plugin_folder: Path, source: str, said: str
) -> None:
    (plugin_folder / "has_an_error.py").write_text(source)
    for run, where in (
        (lambda: import_dotted("has_an_error:Thing", "config.X"), "config.X"),
        (lambda: load_plugins(["pathlib", "has_an_error"]), "config.PLUGINS.1"),
    ):
        with pytest.raises(ConfigError, match=f"^{where}: importing 'has_an_error'") as told:
            run()
        assert said in str(told.value)
        assert "has_an_error.py, line" in str(told.value)
        assert told.value.__cause__ is not None


def test_torch_losses_and_torchvision_transforms_are_known_by_their_own_names() -> None:
    assert LOSSES.get("CrossEntropyLoss") is nn.CrossEntropyLoss
    assert TRANSFORMS.get("RandomResizedCrop") is transforms.RandomResizedCrop
    with pytest.raises(UnknownNameError, match="Did you mean 'RandomResizedCrop'"):
        TRANSFORMS.get("RandomResizeCrop")
    with pytest.raises(UnknownNameError):
        LOSSES.get("Linear")


def test_every_declared_name_is_there_when_it_is_asked_for() -> None:
    registries = [each for each in vars(module).values() if isinstance(each, Registry)]
    assert len(registries) == 19
    for each in registries:
        assert all(each.get(name) is not None for name in each.names())
