"""Run folders that would run code when they are opened: not without trust, and with it they do.

Each case leaves a mark if its code runs. The second test of a pair proves that the case can.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import hydra.utils
import numpy as np
import omegaconf
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from sslengine import trust
from sslengine.command.front import run
from sslengine.errors import UntrustedError
from sslengine.launch import cli
from sslengine.models.trunks.from_timm import TimmTrunk
from sslengine.predictor import Predictor
from tests import warm

TOOLS: dict[str, Callable[[list[str]], int]] = {
    "predict": partial(run, "predict"), "replay": partial(run, "replay"), "command": cli.main,
    "explain": partial(run, "explain"), "convert": partial(run, "convert"),
}  # fmt: skip


class Place:
    """A run's folder and what a case puts into it. Code that runs makes the file `mark`."""

    def __init__(self, folder: Path, number: int, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.run, self.mark = folder / "run", folder / "mark"
        self.image = next((folder / "images").rglob("*.png"))
        self.module = f"hostile_{number}"  # one that no other case has imported
        (folder / f"{self.module}.py").write_text(
            f"open({str(self.mark)!r}, 'w').close()\nraise RuntimeError('code was run')\n"
        )

    def change(self, **changes: Any) -> None:
        """By key path: DATA__TEST__TRANSFORMS=[...]. `header` and all else stay."""
        path = self.run / "config.yaml"
        tree = yaml.safe_load(path.read_text())
        for key, value in changes.items():
            *parents, last = key.split("__")
            node = tree["config"]
            for each in parents:
                node = node.setdefault(each, {})
            node[last] = value
        path.write_text("# @package _global_\n" + yaml.safe_dump(tree))

    def write(self, text: str, name: str = "config.yaml") -> None:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def command(self, tool: str, *arguments: str) -> list[str]:
        if tool == "command":
            named = ["config=config", "--config-dir", str(self.run), "engine_name=evaluate"]
            return [*named, f"config.CHECKPOINT.DIR='{self.run}'", *arguments]
        if tool == "explain":
            return ["config=run/config", "--config-dir", str(self.run.parent), *arguments]
        if tool == "convert":
            weights = str(next((self.run / "checkpoints").glob("model_final*.torch")))
            wanted = ["--from", weights, "--to", "vissl", "--out", str(self.run.parent / "made")]
            return ["config=config", "--config-dir", str(self.run), *wanted, *arguments]
        return [str(self.run), *([str(self.image)] if tool == "predict" else []), *arguments]


@pytest.fixture
def place(
    tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Iterator[Place]:
    shutil.copytree(classifier, tmp_path, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield Place(tmp_path, abs(hash(request.node.name)), monkeypatch)
    for name in set(sys.modules) - before:
        if name.startswith("hostile_"):
            del sys.modules[name]


class _Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


# ---- cases: what the folder holds. (tool, case, arguments of the command)


def plugin(p: Place) -> None:
    p.change(PLUGINS=[p.module])


def loss(p: Place) -> None:
    p.change(LOSS={"name": f"{p.module}:Loss"})


def trunk(p: Place) -> None:
    p.change(MODEL__TRUNK={"NAME": f"{p.module}:Trunk"})


def options_of_a_loss_by_path(p: Place) -> None:
    p.change(**{f"LOSS__{p.module}:Loss": {"a": 1}})


def transform_that_is_called(p: Place) -> None:
    """By a class of Python's own that writes a file."""
    entry = {"name": "zipfile:ZipFile", "file": str(p.mark), "mode": "w"}
    p.change(DATA__TEST__TRANSFORMS=[entry])


def transform_that_is_called_in_training(p: Place) -> None:
    entry = {"name": "zipfile:ZipFile", "file": str(p.mark), "mode": "w"}
    p.change(DATA__TRAIN__TRANSFORMS=[entry])


def source(p: Place) -> None:
    p.change(DATA__TRAIN__DATA_SOURCES=[f"{p.module}:Source"], DATA__TRAIN__LABEL_SOURCES=[])


def collator(p: Place) -> None:
    p.change(DATA__TEST__COLLATE_FUNCTION=f"{p.module}:collate")


def optimizer(p: Place) -> None:
    p.change(OPTIMIZER__name=f"{p.module}:Optimizer")


def engine(p: Place) -> None:
    path = p.run / "config.yaml"
    path.write_text(path.read_text().replace("engine_name: train", f"engine_name: {p.module}:run"))
    assert p.module in path.read_text()


def hook_that_is_called(p: Place) -> None:
    p.change(HOOKS__EXTRA=[{"name": "zipfile:ZipFile", "file": str(p.mark), "mode": "w"}])


def hook_of_the_shell(p: Place) -> None:
    p.change(HOOKS__EXTRA=[{"name": "os:system", "command": f"touch {p.mark}"}])


def function_of_pythons(p: Place) -> None:
    p.change(LOSS={"name": "os:getcwd"})


def no_config_key(p: Place) -> None:
    p.write(f"PLUGINS: [{p.module}]\n")


def header_of_another_package(p: Place) -> None:
    p.write(f"# @package config.PLUGINS\n- {p.module}\n")
    p.write(f"# @package config\nPLUGINS: [{p.module}]\n")


def defaults(p: Place) -> None:
    p.write(f"# @package _global_\nconfig:\n  PLUGINS: [{p.module}]\n", "other.yaml")
    p.write("# @package _global_\ndefaults: [other]\nconfig: {}\n")


def defaults_by_absolute_path(p: Place) -> None:
    p.write(f"PLUGINS: [{p.module}]\n", "deep/other.yaml")
    p.write("# @package _global_\ndefaults:\n- /config/deep@config: other\nconfig: {}\n")


def interpolation(p: Place) -> None:
    p.change(DATA__TRAIN__DATASET_NAMES=[p.module])
    p.change(LOSS={"name": "${config.DATA.TRAIN.DATASET_NAMES.0}:Loss"})


def environment(p: Place) -> None:
    p.change(LOSS={"name": "${oc.env:HOSTILE}"})


def resolver_of_the_users(p: Place) -> None:
    p.change(SEED_VALUE="${test_touch:" + str(p.mark) + "}")


def link_to_another_config(p: Place) -> None:
    plugin(p)
    p.run.joinpath("config.yaml").rename(p.run.parent / "elsewhere.yaml")
    p.run.joinpath("config.yaml").symlink_to(p.run.parent / "elsewhere.yaml")


def merge_key(p: Place) -> None:
    p.write(
        f"# @package _global_\nx: &x\n  PLUGINS: [{p.module}]\nconfig:\n  <<: *x\n  VERBOSE: true\n"
    )


def weights_that_are_trusted(p: Place) -> None:
    torch.save(_Hostile(p.mark), p.run / "weights.torch")
    shutil.rmtree(p.run / "checkpoints")
    weights = {"PARAMS_FILE": str(p.run / "weights.torch"), "TRUST_PICKLE": True}
    p.change(MODEL__WEIGHTS_INIT=weights)


def _timm(p: Place, **options: Any) -> None:
    """Training starts with timm's weights. torch keeps what it downloads below the mark."""
    p.patch.setattr(torch.hub, "_hub_dir", str(p.mark))
    shutil.rmtree(p.run / "checkpoints")
    trunk = {"NAME": "timm", "TIMM": {"model": "test_byobnet", "pretrained": True, **options}}
    p.change(MODEL__TRUNK=trunk, MODEL__HEAD={"PARAMS": [["mlp", {"dims": [256, 3]}]]})


def weights_of_a_library(p: Place) -> None:
    _timm(p)
    p.patch.setattr(TimmTrunk, "library_weights", lambda self, channels: p.mark.touch())


def address_of_weights(p: Place) -> None:
    weights = p.run / "resnet18-f37072fd.pth"
    torch.save(_Hostile(p.mark), weights)
    _timm(p, arguments={"pretrained_cfg_overlay": {"url": weights.as_uri(), "hf_hub_id": None}})


def file_on_top(p: Place) -> None:
    p.write(f"# @package _global_\nconfig:\n  PLUGINS: [{p.module}]\n", "deep/other.yaml")


def copy_to_elsewhere(p: Place) -> None:
    p.change(DATA__TRAIN__COPY_TO_LOCAL_DISK=True, DATA__TRAIN__COPY_DESTINATION_DIR=str(p.mark))


CASES: list[tuple[str, Callable[[Place], None], tuple[str, ...]]] = [
    *((tool, each, ()) for tool in ("predict", "replay") for each in (
        plugin, no_config_key, defaults, interpolation,
    )),
    *(("predict", each, ()) for each in (
        loss, options_of_a_loss_by_path, trunk, transform_that_is_called, source, collator,
        optimizer, engine, defaults_by_absolute_path, header_of_another_package,
        environment, resolver_of_the_users, link_to_another_config, merge_key, copy_to_elsewhere,
    )),
    *(("replay", each, ()) for each in (
        hook_that_is_called, weights_that_are_trusted, weights_of_a_library,
    )),
    *(("command", each, ()) for each in (plugin, interpolation, defaults)),
    *(("explain", each, ()) for each in (plugin, transform_that_is_called_in_training)),
    *(("convert", each, ()) for each in (plugin, trunk)),
    ("predict", plugin, ("--set", "config.SEED_VALUE=1")),
    ("replay", plugin, ("config.SEED_VALUE=0,1",)),
    ("replay", file_on_top, ("+config/deep=other",)),
]  # fmt: skip
# What is no class, and an address of weights, is refused with trust too, so that nothing proves
# that these can be run.
REFUSED_ANYWAY: list[tuple[str, Callable[[Place], None], tuple[str, ...]]] = [
    ("replay", hook_of_the_shell, ()), ("predict", function_of_pythons, ()),
    ("replay", address_of_weights, ()), ("predict", address_of_weights, ()),
]  # fmt: skip
# One of each kind; the others take as long and are marked as slow.
PROVED_EACH_TIME = (
    plugin, loss, transform_that_is_called, defaults, environment, weights_that_are_trusted,
    hook_that_is_called,
)  # fmt: skip


def _each(cases: list[Any], marked: bool) -> Any:
    return pytest.mark.parametrize(
        ("tool", "case", "more"),
        [
            pytest.param(
                tool, case, more, id=f"{tool}-{case.__name__}{'-more' * bool(more)}",
                marks=[pytest.mark.slow] * (marked and (case not in PROVED_EACH_TIME or bool(more))),
            )
            for tool, case, more in cases
        ],
    )  # fmt: skip


# They are not run: the text stays text, the copy is not made.
_PASSED_OVER = (resolver_of_the_users, copy_to_elsewhere)


@pytest.fixture(autouse=True)
def _users_own(monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[None]:
    # In 2.4 the two names have changed places: the other one warns.
    new = omegaconf.__version__.startswith("2.3")
    register = OmegaConf.register_new_resolver if new else OmegaConf.register_resolver
    register("test_touch", lambda path: open(path, "w").close() or 0)
    if "place" in request.fixturenames:
        monkeypatch.setenv("HOSTILE", f"{request.getfixturevalue('place').module}:Loss")
    yield
    OmegaConf.clear_resolver("test_touch")
    assert not trust.is_closed()


@_each(CASES + REFUSED_ANYWAY, marked=False)
def test_without_trust_nothing_is_run(
    place: Place, tool: str, case: Any, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    case(place)
    status = TOOLS[tool](place.command(tool, *more))
    told = capsys.readouterr().err
    assert not place.mark.exists()
    assert "Traceback" not in told
    if case not in _PASSED_OVER:
        assert status != 0
        assert told.startswith("error: "), told
        assert re.search(r"config\.yaml|\+config/|\.arguments\.pretrained_cfg_overlay", told), told
    if "names Python code" in told:
        assert "--trust-config" in told
        assert re.search(r"run/config\.yaml: (config\.[\w.:]+|engine_name): '", told), told


@_each(CASES, marked=True)
def test_with_trust_it_is(
    place: Place, tool: str, case: Any, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with suppress(Exception):  # what is named is no loss, hook or transform
        TOOLS[tool](place.command(tool, "--trust-config", *more))
    assert place.mark.exists()


def test_the_predictor_of_python_asks_the_same(place: Place) -> None:
    plugin(place)
    with pytest.raises(
        UntrustedError, match=r"config\.yaml: config\.PLUGINS\.0: 'hostile_\d+' nam"
    ):
        Predictor(place.run)
    assert not place.mark.exists()
    with pytest.raises(Exception, match="code was run"):
        Predictor(place.run, trust_config=True)
    assert place.mark.exists()


def test_a_check_of_a_folder_with_runs_asks_the_same(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(place)
    place.patch.setenv("PYTHONPATH", str(place.run.parent))
    assert run("check", [str(place.run.parent)]) == 1
    assert "names Python code" in "".join(capsys.readouterr())
    assert not place.mark.exists()
    run("check", [str(place.run.parent), "--trust-config"])
    assert place.mark.exists()


def test_a_run_is_no_recipe(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Plugins of a recipe are imported before it is composed."""
    plugin(place)
    images = str(place.image.parents[1])
    assert run("train", [images, "--recipe", "config", "--config-dir", str(place.run)]) == 2
    assert "run/config.yaml" in capsys.readouterr().err
    assert not place.mark.exists()


def test_what_is_looked_up_late_is_refused_too(place: Place) -> None:
    """The training set is opened with the first question about it."""
    predictor = Predictor(place.run)
    data = predictor.resolved.config.DATA.TRAIN
    OmegaConf.set_readonly(predictor.resolved.config, False)
    data.DATA_SOURCES = [f"{place.module}:Source"]
    with pytest.raises(UntrustedError, match="DATA_SOURCES"):
        predictor(place.image)
    assert not place.mark.exists()


# ---- what is never run, trusted or not; the first line of each proves that others would


def _tag(p: Place) -> None:
    text = f"config: !!python/object/apply:os.mkdir [{p.mark}]\n"
    assert yaml.unsafe_load(text) == {"config": None}
    assert p.mark.is_dir()
    p.write(f"# @package _global_\n{text}")


def _target(p: Place) -> None:
    entry = {"_target_": "os.mkdir", "path": str(p.mark)}
    assert hydra.utils.instantiate(entry) is None
    assert p.mark.is_dir()
    p.change(LOSS={"name": "cross_entropy_multiple_output_single_target", "_target_": "os.mkdir"})
    p.change(DATA__TEST__TRANSFORMS=[entry])


def _checkpoint(p: Place) -> None:
    checkpoint = next((p.run / "checkpoints").glob("model_final*.torch"))
    torch.save({"classy_state_dict": _Hostile(p.mark)}, checkpoint)
    torch.load(checkpoint, weights_only=False)
    assert p.mark.is_dir()
    for manifest in (p.run / "checkpoints").glob("*.json"):
        manifest.unlink()


def _kept_features(p: Place) -> None:
    assert TOOLS["predict"](p.command("predict")) == 0
    (kept,) = (p.run / "features").glob("train-*/00000.trunk.npy")
    np.save(kept, np.array([_Hostile(p.mark)], dtype=object), allow_pickle=True)
    np.load(kept, allow_pickle=True)
    assert p.mark.is_dir()


def _list_of_files(p: Place) -> None:
    listed = p.run / "files.npy"
    np.save(listed, np.array([_Hostile(p.mark)], dtype=object), allow_pickle=True)
    np.load(listed, allow_pickle=True)
    assert p.mark.is_dir()
    p.change(DATA__TRAIN__DATA_SOURCES=["disk_filelist"], DATA__TRAIN__DATA_PATHS=[str(listed)])
    p.change(DATA__TRAIN__LABEL_SOURCES=[])


def _member_of_a_tar(p: Place) -> None:
    content = pickle.dumps(_Hostile(p.mark))
    pickle.loads(content)
    assert p.mark.is_dir()
    with tarfile.open(p.run / "shard.tar", "w") as tar:
        for name, each in (("a.png", p.image.read_bytes()), ("a.pyd", content), ("a.cls", b"0")):
            member = tarfile.TarInfo(name)
            member.size = len(each)
            tar.addfile(member, io.BytesIO(each))
    p.change(DATA__TRAIN__DATA_SOURCES=["webdataset"], DATA__TRAIN__LABEL_SOURCES=[])
    p.change(DATA__TRAIN__DATA_PATHS=[str(p.run / "shard.tar")])


@pytest.mark.parametrize(
    "trusting",
    [
        pytest.param((), id="untrusted"),
        pytest.param(("--trust-config",), id="trusted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "case", [_tag, _target, _checkpoint, _kept_features, _list_of_files, _member_of_a_tar]
)
def test_data_is_never_run(place: Place, case: Any, trusting: tuple[str, ...]) -> None:
    case(place)
    place.mark.rmdir()
    status = TOOLS["predict"](place.command("predict", *trusting))
    expected = {_member_of_a_tar: 0, _tag: 2, _target: 2}  # 2: the config is wrong
    assert status == expected.get(case, 1)
    assert not place.mark.exists()


# ---- processes of their own


def test_modules_that_lie_beside_the_run_are_not_imported(place: Place) -> None:
    """`cd` into a folder of somebody's: hydra would take plugins from it, if it searched."""
    plugins = place.run / "hydra_plugins"
    plugins.mkdir()
    (plugins / "mine.py").write_text(f"open({str(place.mark)!r}, 'w').close()\n")
    place.change(LOSS={"name": "no_such_loss"})
    script = place.run.parent / "command.py"  # as pip installs it: Python adds its folder alone
    script.write_text("import sys\nfrom sslengine.command.front import main\nsys.exit(main())\n")
    command = [sys.executable, str(script), "replay", "."]
    for more in ([], ["--trust-config"]):
        done = warm.run([*command, *more], cwd=place.run)
        assert done.returncode == 2
        assert "no_such_loss" in done.stderr, done.stderr
        assert not place.mark.exists()
