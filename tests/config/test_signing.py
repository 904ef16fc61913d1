"""A run that the user's key has signed may name the user's code; one that somebody has changed may
not. Each attack is of one who was given a signed folder, or has a folder of one's own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sslengine import catalog, trust  # noqa: F401 - declares the names that ship with sslengine
from sslengine.checkpoint import files
from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.config import run_folder
from sslengine.config.run_folder import open_named, open_run
from sslengine.errors import ConfigError, UntrustedError
from sslengine.models.weight_file import read_weights
from sslengine.signing import modules_of_signed
from sslengine.trust import Opened, closed
from tests.engines.runs import make_run

Attack = Callable[[Path, Path], object]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder with a module, which is the current one; a home without a key."""
    place = tmp_path / "mine"
    place.mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(trust, "_searched", set())
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def module(place: Path, request: Any) -> str:
    """One of the user's, whose name no other test has imported."""
    name = f"own_{abs(hash(request.node.name))}"
    (place / f"{name}.py").write_text("")
    return name


def trained(folder: Path, **changes: Any) -> Path:
    """A run with one checkpoint, as training leaves it."""
    make_run(folder, **changes).describe()
    files.write({"x": str(folder)}, folder / "checkpoints", "model_phase0.torch")
    return folder


def trained_with(module: str, folder: Path) -> Path:
    """It names the module, which this process has not imported yet."""
    found = trained(folder, PLUGINS=[module])
    del sys.modules[module]
    sys.path.remove("")
    return found


def is_users(folder: Path, name: str = "config.yaml") -> bool:
    return modules_of_signed(folder / name, (folder / name).read_bytes()) is not None


def write_module(folder: Path, name: str) -> Path:
    """A stranger's; returns the file that it makes when it is imported."""
    mark = folder / "mark"
    (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()")
    return mark


def test_code_that_a_users_own_run_names_needs_no_flag(module: str, tmp_path: Path) -> None:
    run = trained_with(module, tmp_path / "run")
    assert [module] == open_run(run).config.PLUGINS
    assert module in sys.modules


def test_a_folder_that_was_moved_is_the_users_still(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    assert is_users(shutil.copytree(run, tmp_path / "copied"))
    assert is_users(run.rename(tmp_path / "elsewhere"))


def test_an_interpolation_of_a_users_own_run_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGES", "/images")
    given = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": ["${oc.env:IMAGES}/train"]}
    run = trained(tmp_path / "run", **{f"DATA__TRAIN__{key}": given[key] for key in given})
    assert open_run(run).config.DATA.TRAIN.DATA_PATHS == ["/images/train"]


def _edit(file: str, old: str, new: str) -> Attack:
    def change(run: Path, other: Path) -> None:
        text = (run / file).read_text()
        assert old in text
        (run / file).write_text(text.replace(old, new))

    return change


def _take(*names: str) -> Attack:
    """Put the other run's files in their place."""

    def take(run: Path, other: Path) -> None:
        for name in names:
            (run / name).unlink()
            shutil.copy(other / name, run / name)

    return take


def _link(run: Path, other: Path) -> None:
    (run / "config.yaml").unlink()
    os.link(other / "config.yaml", run / "config.yaml")


def _link_signature(run: Path, other: Path) -> None:
    (run / "signature.json").rename(other / "kept.json")
    (run / "signature.json").symlink_to(other / "kept.json")


def _rename(run: Path, other: Path) -> None:
    (run / "config_evaluate.yaml").rename(run / "config.yaml")


def _sign_again(run: Path, other: Path) -> None:
    """With a key that the stranger has, whose run gets the checkpoints' number too."""
    stored = json.loads((run / "signature.json").read_text())
    theirs = json.loads((other / "signature.json").read_text())
    (run / "signature.json").write_text(json.dumps({**theirs, "configs": stored["configs"]}))


CHECKPOINT = "checkpoints/model_phase0.json"
CHANGES: dict[str, Attack] = {
    "config": _edit("config.yaml", "SEED_VALUE: 0", "SEED_VALUE: 1"),
    "config of another": _take("config.yaml"),
    "hard link": _link,
    "signature of another": _take("signature.json"),
    "signature linked": _link_signature,
    "signature of parts": _sign_again,
    "signature of an evaluation": _rename,
    "folder of modules": _edit("signature.json", '"modules": "', '"modules": "/tmp'),
    "manifest": _edit(CHECKPOINT, '"iteration": 0', '"iteration": 1'),
    "manifest without": _edit(CHECKPOINT, '"signature"', '"other"'),
    "checkpoint of another": _take(CHECKPOINT, "checkpoints/model_phase0.torch"),
    "no signature": lambda run, other: (run / "signature.json").unlink(),
    "no JSON": lambda run, other: (run / "signature.json").write_text("[" * 100_000),
    "other types": lambda run, other: (run / "signature.json").write_text(
        '{"run": [], "signature": "\\u00e9", "configs": 1}'
    ),
}


@pytest.mark.parametrize("attack", CHANGES)
def test_a_folder_that_was_changed_is_nobodys(attack: str, tmp_path: Path) -> None:
    run, other = trained(tmp_path / "run"), trained(tmp_path / "other", SEED_VALUE=5)
    make_run(run, "evaluate").describe()
    assert is_users(run)
    CHANGES[attack](run, other)
    assert not is_users(run)


def test_a_checkpoint_without_a_signature_is_nobodys(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    with closed(Opened("other")):
        files.write({"x": 1}, run / "checkpoints", "model_phase1.torch")
    assert not is_users(run)


def test_a_module_beside_the_run_or_in_the_current_folder_is_not_imported(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(trained_with(module, tmp_path / "run"), tmp_path / "given" / "run")
    marks = [write_module(folder, module) for folder in (run, run.parent)]
    for folder in (run, run.parent):
        monkeypatch.chdir(folder)
        open_run(run)
        assert Path(sys.modules.pop(module).__file__ or "").parent == tmp_path / "mine"
    shutil.rmtree(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"config\.PLUGINS\.0"):
        open_run(run)
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize("way", ["its folder is the run's", "anyone may write there"])
def test_a_folder_that_others_may_have_written_to_is_not_searched(
    way: str, module: str, place: Path
) -> None:
    run = place if way == "its folder is the run's" else place / "run"
    trained_with(module, run)
    place.chmod(0o755 if run == place else 0o777)
    mark = write_module(place, module)
    with pytest.raises(ConfigError, match=r"config\.PLUGINS\.0"):
        open_run(run)
    assert not mark.exists()


def test_modules_of_two_folders_are_not_mixed(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have the same names, and a process imports a name once."""
    one = trained_with(module, tmp_path / "one")
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    (tmp_path / "second" / f"{module}.py").write_text("")
    other = trained_with(module, tmp_path / "other")
    open_run(one)
    with pytest.raises(UntrustedError, match=r"mine are in use"):
        open_run(other)


def test_no_yaml_beside_a_signed_config_is_read(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    (run / "config").mkdir()
    (run / "config" / "config.yaml").write_text("# @package _global_\nconfig: {SEED_VALUE: 3}\n")
    assert open_run(run).config.SEED_VALUE == 0
    (run / "dataset_catalog.json").write_text("{}")
    open_named(["config=config"], [str(run)])
    assert not os.environ[run_folder.FOUND_CATALOGUE]


def test_the_bytes_that_were_checked_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that changes between the check and the reading."""
    run = trained(tmp_path / "run")

    def check(path: Path, content: bytes) -> str | None:
        found = modules_of_signed(path, content)
        _edit("config.yaml", "SEED_VALUE: 0", "SEED_VALUE: 1")(run, run)
        return found

    monkeypatch.setattr(run_folder, "modules_of_signed", check)
    assert open_run(run).config.SEED_VALUE == 0


def test_other_files_of_a_signed_folder_gain_no_trust(tmp_path: Path) -> None:
    """A pickle that its config trusts may be another one by now, and a link is a stranger's."""
    weights = {"PARAMS_FILE": str(tmp_path / "weights.torch"), "TRUST_PICKLE": True}
    run = trained(tmp_path / "run", MODEL__WEIGHTS_INIT=weights)
    (run / "features").symlink_to(tmp_path / "home")
    files.write({"x": 1}, tmp_path, "weights.torch")
    opened = open_run(run).opened
    with closed(opened), pytest.raises(UntrustedError, match="TRUST_PICKLE"):
        read_weights(tmp_path / "weights.torch", trusted=True)
    with closed(opened), pytest.raises(UntrustedError, match="features"):
        expect_no_links_out(run)


def test_what_a_strangers_config_makes_the_engine_write_is_not_signed(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    opened = open_run(run).opened
    for each, signed in ((Opened("other"), False), (opened, True)):
        with closed(each):
            make_run(run, "evaluate").describe()
        assert is_users(run, "config_evaluate.yaml") == signed
    with closed(Opened("other")):
        trained(tmp_path / "given")
    assert not (tmp_path / "given" / "signature.json").exists()


def test_a_run_that_resumes_keeps_its_checkpoints(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    with closed(open_run(run).opened):
        make_run(run, SEED_VALUE=1).describe()
    assert is_users(run)


# ---- the key


def test_the_key_is_the_users_alone_and_is_made_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = [*pool.map(lambda number: trained(tmp_path / str(number)), range(8))]
    assert all(map(is_users, runs))
    folder = tmp_path / "home" / "sslengine"
    (key,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o700, 0o600)


def _no_home(home: Path, patch: pytest.MonkeyPatch) -> None:
    home.rmdir()
    patch.setenv("XDG_CONFIG_HOME", str(home / "sub" / "folder"))


def _no_folder(home: Path, patch: pytest.MonkeyPatch) -> None:
    (home / "sslengine").write_text("a file")


def _of_another_user(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize("case", [_no_home, _no_folder, _of_another_user])
def test_without_a_home_a_run_is_trained_and_not_signed(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case(tmp_path / "home", monkeypatch)
    run = trained(tmp_path / "run")
    assert not (run / "signature.json").exists()
    assert not is_users(run)


def _readable(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    key.chmod(0o640)


def _open_folder(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    key.parent.chmod(0o777)


def _linked(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    key.symlink_to(key.rename(run / "key"))


def _short(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    key.write_bytes(b"")


def _inside(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.copytree(key.parent, run / "home" / "sslengine")
    patch.setenv("XDG_CONFIG_HOME", str(run / "home"))


def _relative(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.move(key.parent, "sslengine")
    patch.setenv("XDG_CONFIG_HOME", ".")
    patch.setenv("HOME", str(run))


def _theirs(run: Path, key: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize(
    "attack", [_readable, _open_folder, _linked, _short, _inside, _relative, _theirs]
)
def test_a_key_that_others_know_or_bring_signs_nothing(
    attack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path / "run")
    assert is_users(run)
    attack(run, tmp_path / "home" / "sslengine" / "key", monkeypatch)
    assert not is_users(run)
