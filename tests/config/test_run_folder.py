"""Folders of runs that are opened: whose code and which files are trusted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.config.run_folder import open_named, open_run
from sslengine.config.show import show
from sslengine.config.stored import as_stored, changes
from sslengine.data.sources.base import build_sources
from sslengine.engines.train import train
from sslengine.errors import ConfigError, DataError, SSLEngineError, UntrustedError
from sslengine.launch.cli import resolve_all
from sslengine.predictor import Predictor
from sslengine.predictor.checkpoints import read_checkpoints
from tests.config.recipes import recipe, resolved
from tests.engines.runs import make_run
from tests.engines.test_stored import MEANS, stored
from tests.predictor.runs import changes as image_changes
from tests.predictor.runs import pictures


def _folder(folder: Path, **changes: Any) -> Path:
    text = "# @package _global_\n" + yaml.safe_dump({"config": recipe(**changes)})
    (folder / "config.yaml").write_text(text)
    return folder


def test_values_that_the_user_types_come_on_top(tmp_path: Path) -> None:
    run = open_run(_folder(tmp_path), ["config.SEED_VALUE=7", "engine_name=replay"])
    assert (run.config.SEED_VALUE, run.engine_name) == (7, "replay")
    assert run.opened is not None
    assert run.opened.file == str(tmp_path / "config.yaml")
    assert run.opened.typed >= {"config.SEED_VALUE", "replay"}
    trusted = open_run(tmp_path, ["config.SEED_VALUE=7"], trusted=True)
    assert trusted.opened is None
    assert trusted.config.SEED_VALUE == 7
    with pytest.raises(ConfigError, match=r"\+config/x=y: no file can be added to .*config.yam"):
        open_run(tmp_path, ["+config/x=y"])
    with pytest.raises(ConfigError, match="has no config.yaml: it is not the folder of a run"):
        open_run(tmp_path / "none")


def test_code_that_the_user_types_is_his_own(tmp_path: Path) -> None:
    path = "tests.hooks.test_default:Plain"
    _folder(tmp_path, HOOKS__EXTRA=[path])
    with pytest.raises(UntrustedError, match=r"config\.HOOKS\.EXTRA\.0: 'tests.hooks"):
        open_run(tmp_path)
    assert [path] == open_run(tmp_path, [f"config.HOOKS.EXTRA=['{path}']"]).config.HOOKS.EXTRA


@pytest.mark.parametrize("arguments", [
    ["config=config"], ["config=config_evaluate"], ["config=superseded/config.yaml"],
    ["config=earlier/1/config"], ["config=config,config_evaluate"], ["config=mine/linked"],
    ["config=mine/based"], ["config=mine/own", "+config/theirs=config_evaluate"],
])  # fmt: skip
def test_every_file_of_a_runs_folder_is_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """By any name and at any place of a composition. A plugin leaves a mark when it is imported."""
    mine, run, mark = tmp_path / "configs" / "mine", tmp_path / "run", tmp_path / "mark"
    mine.mkdir(parents=True)
    (tmp_path / "configs" / "theirs").symlink_to(run)
    plugin = f"hostile_{abs(hash(tmp_path))}"
    (tmp_path / f"{plugin}.py").write_text(f"open({str(mark)!r}, 'w').close()")
    for name in (".", "superseded", "earlier/1"):
        (run / name).mkdir(parents=True, exist_ok=True)
        _folder(run / name, PLUGINS=[plugin])
    (run / "metrics.jsonl").touch()
    shutil.copy(run / "config.yaml", run / "config_evaluate.yaml")
    (mine / "linked.yaml").symlink_to(run / "config.yaml")
    (mine / "own.yaml").write_text((_folder(mine) / "config.yaml").read_text())
    (mine / "based.yaml").write_text(
        "# @package _global_\ndefaults: [/config/mine/own, /config/theirs/config]\nconfig: {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SSLEngineError, match=r"run/|theirs/|linked\.yaml"):
        resolve_all(arguments, [str(run)])
    assert not mark.exists()
    resolve_all(arguments, [str(run)], trusted=True)
    assert mark.exists()


def test_a_judged_run_is_opened_without_what_training_alone_needs(tmp_path: Path) -> None:
    _folder(tmp_path, HOOKS={"EXTRA": ["no.such:Hook"]}, SLURM={"USE_SLURM": True})
    for trusted in (False, True):
        run = open_run(tmp_path, judged=True, trusted=trusted)
        assert not run.config.HOOKS.EXTRA
        assert not run.config.SLURM.USE_SLURM


def test_what_was_not_read_is_told_unless_the_user_gives_it(tmp_path: Path) -> None:
    paths = ["${oc.env:IMAGES}/train"]
    _folder(tmp_path, DATA__TRAIN__DATA_PATHS=paths, DATA__TRAIN__DATA_SOURCES=["disk_folder"])
    run = open_run(tmp_path)
    assert run.config.DATA.TRAIN.DATA_PATHS == ["$not_read{oc.env:IMAGES}/train"]
    with pytest.raises(DataError, match=r" \$\{oc.env:IMAGES\}/train is not there"):
        build_sources(run.config.DATA.TRAIN, "TRAIN")
    (warning,) = (each for each in run.warnings if "environment" in each)
    assert warning.startswith("config.DATA.TRAIN.DATA_PATHS.0 refers to another value or to the")
    for typed in ("config.DATA.TRAIN.DATA_PATHS=[x]", "config.DATA.TRAIN.DATA_PATHS.0=x"):
        run = open_run(tmp_path, [typed])
        assert run.config.DATA.TRAIN.DATA_PATHS == ["x"]
        assert not any("environment" in each for each in run.warnings)


def test_a_file_that_has_the_keys_of_all_components(tmp_path: Path) -> None:
    """It is opened, and the run resumes: nothing has changed."""
    text = (Path(__file__).parent / "run_before_options.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    run = open_run(tmp_path)
    assert run.warnings == ()
    assert "CACHE_INDEX" not in run.config.DATA.TRAIN  # it reads shapes
    schedule = run.config.OPTIMIZER.param_schedulers.lr
    assert (schedule.lengths, "values" in schedule) == ([0.1, 0.9], False)
    now = as_stored(run.config, run.texts)
    assert [str(each) for each in changes(text, now, run.origins)] == []
    (later,) = changes(text.replace("amsgrad: null", "amsgrad: true"), now, run.origins)
    assert str(later) == "config.OPTIMIZER.amsgrad: True -> None"


def _transparent(run: Any) -> list[Any]:
    return [run.config.DATA[split].TRANSPARENT for split in ("TRAIN", "TEST")]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_run_without_a_key_keeps_what_its_version_did(trusted: bool, tmp_path: Path) -> None:
    run, chosen = _folder(tmp_path), (["config=config"], [str(tmp_path)], trusted)
    assert _transparent(open_run(run, trusted=trusted, judged=True)) == ["drop", "drop"]
    typed = ["config.DATA.TRAIN.TRANSPARENT=black"]
    assert _transparent(open_run(run, typed, trusted=trusted)) == ["black", "drop"]
    (run / "checkpoints").mkdir()
    found = open_named(*chosen)
    assert _transparent(found) == ["drop", "drop"]
    text, now = (run / "config.yaml").read_text(), as_stored(found.config, found.texts)
    assert not any("TRANSPARENT" in str(each) for each in changes(text, now, found.origins))
    (run / "config.yaml").write_text(show(resolved()))
    assert _transparent(open_named(*chosen)) == ["white", "white"]


def test_also_where_the_config_that_it_began_from_resumes_it(tmp_path: Path) -> None:
    run, configs = tmp_path / "run", tmp_path / "configs"
    run.mkdir()
    configs.mkdir()
    _folder(run)
    shutil.copy(run / "config.yaml", configs / "mine.yaml")
    begun = ["config=mine", f"config.CHECKPOINT.DIR={run}"]
    assert _transparent(open_named(begun, [str(configs)])) == ["white", "white"]
    (run / "checkpoints" / "model_final.torch").mkdir(parents=True)
    assert _transparent(open_named(begun, [str(configs)])) == ["drop", "drop"]
    typed = [*begun, "config.DATA.TRAIN.TRANSPARENT=black"]
    assert _transparent(open_named(typed, [str(configs)])) == ["black", "drop"]
    (run / "config.yaml").write_text(show(resolved()))
    assert _transparent(open_named(begun, [str(configs)])) == ["white", "white"]


# ---- Kept features are computed again when the user's code is edited.


SOURCE = """
import levels_of_users
from PIL import Image
from sslengine.data.sources.disk import FolderSource

class Brighter(FolderSource):
    def read(self, index):
        image = Image.new("RGB", (16, 16), (levels_of_users.LEVEL,) * 3)
        image.save(file := levels_of_users.BytesIO(), "png")
        return file.getvalue()
"""


@pytest.fixture
def level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Writes the user's modules, as a new process finds them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(value: int) -> None:
        (tmp_path / "users_source.py").write_text(SOURCE)
        (tmp_path / "levels_of_users.py").write_text(f"from io import BytesIO\nLEVEL = {value}\n")
        for name in ("users_source", "levels_of_users"):
            sys.modules.pop(name, None)

    return write


def test_stored_features(tmp_path: Path, level: Callable[[int], None]) -> None:
    """A module that the named one imports."""
    pictures(tmp_path / "images")

    def rows() -> tuple[torch.Tensor, str]:
        source = ["users_source:Brighter"]
        found, said = stored(
            tmp_path / "run", tmp_path / "images", MEANS, DATA_SOURCES=source, LABEL_SOURCES=source
        )
        return found.stores["means"].layer("mean").tensor(), said

    level(51)
    assert rows()[0].unique().tolist() == pytest.approx([0.2])
    assert "are on the disk" in rows()[1]
    level(102)
    assert rows()[0].unique().tolist() == pytest.approx([0.4])


def test_the_predictors_index_and_features_of_checkpoints(
    tmp_path: Path, level: Callable[[int], None]
) -> None:
    pictures(tmp_path / "images")
    source = {"DATA__TRAIN__DATA_SOURCES": ["users_source:Brighter"]}
    source["DATA__TRAIN__LABEL_SOURCES"] = source["DATA__TRAIN__DATA_SOURCES"]

    def found() -> list[torch.Tensor]:
        predictor = Predictor(tmp_path / "run", trust_config=True)
        (read,) = read_checkpoints(predictor, [predictor.checkpoint], views=1, rows=12)
        return [predictor.index.features, read.inputs.features, read.inputs.views]

    level(51)
    train(make_run(tmp_path / "run", **image_changes(tmp_path / "images", **source)))
    before, again = found(), found()
    level(250)
    after = found()
    assert all(one.equal(other) for one, other in zip(before, again, strict=True))
    assert not any(one.allclose(other) for one, other in zip(before, after, strict=True))
