"""What a run's folder may do that the user's key has signed, and that somebody else then had.

Each case of an attack is what one does who got a signed folder, and has folders of one's own.
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
from sslengine.config.options import FOUND_CATALOGUE
from sslengine.config.run_folder import open_named, open_run
from sslengine.errors import ConfigError, UntrustedError
from sslengine.hooks.profile import profile_folder
from sslengine.models.weights.read import read_weights
from sslengine.signing import modules_of_signed
from sslengine.trust import Opened, closed
from tests.engines.runs import make_run


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one; in a home without a key."""
    for name in ("mine", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(trust, "_searched", set())
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path / "mine"


def trained(folder: Path, **changes: Any) -> Path:
    """A run with one checkpoint, as training leaves it."""
    make_run(folder, **changes).describe()
    files.write({"x": str(folder)}, folder / "checkpoints", "model_phase0.torch")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(tmp_path / "run")


@pytest.fixture
def module(request: Any) -> str:
    """A name that no other test has imported."""
    return f"own_{abs(hash(request.node.name))}"


def trained_with(module: str, folder: Path) -> Path:
    """It names a module of the current folder, which this process has not imported yet."""
    Path(f"{module}.py").write_text("")
    found = trained(folder, PLUGINS=[module])
    del sys.modules[module]
    sys.path.remove("")
    return found


def write_strangers(folder: Path, module: str) -> Path:
    """Returns the file that the module makes when it is imported."""
    mark = folder / "mark"
    (folder / f"{module}.py").write_text(f"open({str(mark)!r}, 'w').close()")
    return mark


def is_users(folder: Path, name: str = "config.yaml") -> bool:
    return modules_of_signed(folder / name, (folder / name).read_bytes()) is not None


def test_code_that_a_users_own_run_names_is_imported(module: str, tmp_path: Path) -> None:
    run = trained_with(module, tmp_path / "run")
    assert [module] == open_run(run).config.PLUGINS
    assert module in sys.modules


def test_a_folder_that_was_moved_or_resumes_is_the_users_still(run: Path, tmp_path: Path) -> None:
    assert is_users(shutil.copytree(run, tmp_path / "copied"))
    run = run.rename(tmp_path / "elsewhere")
    assert is_users(run)
    make_run(run, SEED_VALUE=1).describe()
    assert is_users(run)


def test_what_a_users_own_config_says_of_files_and_the_environment_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGES", "/images")
    given = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": ["${oc.env:IMAGES}/train"]}
    run = trained(tmp_path / "run", **{f"DATA__TRAIN__{key}": given[key] for key in given})
    opened = open_run(run)
    assert opened.config.DATA.TRAIN.DATA_PATHS == ["/images/train"]
    with closed(opened.opened):
        assert profile_folder(run, "/elsewhere") == Path("/elsewhere")


def edit(file: str, old: str, new: str) -> Callable[[Path, Path], None]:
    def change(run: Path, other: Path) -> None:
        text = (run / file).read_text()
        assert old in text
        (run / file).write_text(text.replace(old, new))

    return change


def take(*names: str, link: bool = False) -> Callable[[Path, Path], None]:
    def replace(run: Path, other: Path) -> None:
        for name in names:
            (run / name).unlink()
            (os.link if link else shutil.copy)(other / name, run / name)

    return replace


def take_number(run: Path, other: Path) -> None:
    take(CHECKPOINT, CHECKPOINT.replace("json", "torch"))(run, other)
    found, theirs = (json.loads((each / "signature.json").read_text()) for each in (run, other))
    (run / "signature.json").write_text(json.dumps({**found, "run": theirs["run"]}))


def link_signature(run: Path, other: Path) -> None:
    (run / "signature.json").symlink_to((run / "signature.json").rename(other / "moved.json"))


CHECKPOINT = "checkpoints/model_phase0.json"
CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "config": edit("config.yaml", "SEED_VALUE: 0", "SEED_VALUE: 1"),
    "config of another": take("config.yaml"),
    "hard link": take("config.yaml", link=True),
    "signature of another": take("signature.json"),
    "signature linked": link_signature,
    "signature of an evaluation": lambda run, other: (run / "config_evaluate.yaml").rename(
        run / "config.yaml"
    ),
    "folder of modules": edit("signature.json", '"",', '"/tmp",'),
    "manifest": edit(CHECKPOINT, '"iteration": 0', '"iteration": 1'),
    "manifest without": edit(CHECKPOINT, '"signature"', '"other"'),
    "checkpoint of another": take(CHECKPOINT, CHECKPOINT.replace("json", "torch")),
    "checkpoint and number of another": take_number,
    "no signature": lambda run, other: (run / "signature.json").unlink(),
    "other types": lambda run, other: (run / "signature.json").write_text(
        '{"run": [], "configs": {"config.yaml": ["", "\\u00e9"]}}'
    ),
}


@pytest.mark.parametrize("attack", CHANGES)
def test_a_folder_that_was_changed_is_not(attack: str, run: Path, tmp_path: Path) -> None:
    make_run(run, "evaluate").describe()
    assert is_users(run)
    CHANGES[attack](run, trained(tmp_path / "other", SEED_VALUE=5))
    assert not is_users(run)


def test_a_module_beside_the_run_or_in_the_current_folder_is_not_imported(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(trained_with(module, tmp_path / "run"), tmp_path / "given" / "run")
    marks = [write_strangers(folder, module) for folder in (run, run.parent)]
    for folder in (run, run.parent):
        monkeypatch.chdir(folder)
        open_run(run)
        assert Path(sys.modules.pop(module).__file__ or "").parent == tmp_path / "mine"
    shutil.rmtree(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"config\.PLUGINS\.0"):
        open_run(run)
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize(("run", "code"), [(".", "."), (".", "code"), ("run", ".")])
def test_a_module_where_others_may_have_written_is_not_imported(
    run: str, code: str, module: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the run's folder, or below it on PYTHONPATH, or in one that is open to all."""
    (place / "code").mkdir()
    monkeypatch.chdir(place / code)
    found = trained_with(module, place / run)
    place.chmod(0o777 if run == "run" else 0o755)
    mark = write_strangers(place / code, module)
    sys.path.append(str(place / "code"))
    with pytest.raises(ConfigError, match=r"config\.PLUGINS\.0"):
        open_run(found)
    assert not mark.exists()


def test_modules_of_two_folders_are_not_mixed(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have the same names, and a process imports a name once."""
    one = trained_with(module, tmp_path / "one")
    monkeypatch.chdir(tmp_path / "home")
    other = trained_with(module, tmp_path / "other")
    open_run(one)
    with pytest.raises(UntrustedError, match=r"mine are in use"):
        open_run(other)


def test_no_other_file_of_a_signed_folder_gains_trust(run: Path, tmp_path: Path) -> None:
    weights = {"PARAMS_FILE": "weights.torch", "TRUST_PICKLE": True}
    trained(run, MODEL__WEIGHTS_INIT=weights)
    (run / "config").mkdir()
    (run / "config" / "config.yaml").write_text("# @package _global_\nconfig: {SEED_VALUE: 3}\n")
    (run / "dataset_catalog.json").write_text("{}")
    (run / "features").symlink_to(tmp_path / "home")
    opened = open_named(["config=config", "config.SEED_VALUE=0"], [str(run / ".")])
    assert open_run(run).config.SEED_VALUE == 0
    assert not os.environ[FOUND_CATALOGUE]
    with closed(opened.opened):
        with pytest.raises(UntrustedError, match="TRUST_PICKLE"):
            read_weights(Path("weights.torch"), trusted=True)
        with pytest.raises(UntrustedError, match="features"):
            expect_no_links_out(run)


def test_the_bytes_that_were_checked_are_those_that_are_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(path: Path, content: bytes) -> str | None:
        CHANGES["config"](run, run)
        return modules_of_signed(path, content)

    monkeypatch.setattr(run_folder, "modules_of_signed", check)
    opened = open_run(run)
    assert opened.opened is not None
    assert opened.opened.signed
    assert opened.config.SEED_VALUE == 0


def test_what_is_written_for_a_config_of_others_is_not_signed(run: Path) -> None:
    for opened, signed in ((Opened("theirs"), False), (open_run(run).opened, True)):
        with closed(opened):
            make_run(run, "evaluate").describe()
        assert is_users(run, "config_evaluate.yaml") == signed
    with closed(Opened("theirs")):
        files.write({"x": 1}, run / "checkpoints", "model_phase1.torch")
    assert not is_users(run)


def test_the_key_is_the_users_alone_and_is_made_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = [*pool.map(lambda number: trained(tmp_path / str(number)), range(8))]
    assert all(map(is_users, runs))
    folder = tmp_path / "home" / "sslengine"
    (key,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, key.stat().st_mode & 0o777) == (0o700, 0o600)


Case = Callable[[Path, pytest.MonkeyPatch], object]
NO_HOMES: dict[str, Case] = {
    "not there": lambda home, patch: patch.setenv("XDG_CONFIG_HOME", str(home / "no" / "folder")),
    "not writable": lambda home, patch: (home / "sslengine").write_text("a file"),
    "of another user": lambda home, patch: patch.setattr(os, "geteuid", lambda: 12345),
}


@pytest.mark.parametrize("case", NO_HOMES)
def test_without_a_home_a_run_is_trained_and_not_signed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    NO_HOMES[case](tmp_path / "home", monkeypatch)
    run = trained(tmp_path / "run")
    assert not (run / "signature.json").exists()


def bring(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("XDG_CONFIG_HOME", str(home.rename(home.parent / "run" / "home")))


def say(home: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(home)
    patch.setenv("XDG_CONFIG_HOME", ".")
    patch.setenv("HOME", str(home))


KEYS: dict[str, Case] = {
    "others read it": lambda home, patch: (home / "sslengine" / "key").chmod(0o640),
    "others replace it": lambda home, patch: (home / "sslengine").chmod(0o777),
    "a link": lambda home, patch: (home / "sslengine" / "key").symlink_to(
        (home / "sslengine" / "key").rename(home / "key")
    ),
    "empty": lambda home, patch: (home / "sslengine" / "key").write_bytes(b""),
    "of another user": NO_HOMES["of another user"],
    "in the run": bring,
    "by a relative path": say,
}


@pytest.mark.parametrize("attack", KEYS)
def test_a_key_that_others_know_or_bring_is_not_used(
    attack: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_users(run)
    KEYS[attack](tmp_path / "home", monkeypatch)
    assert not is_users(run)
