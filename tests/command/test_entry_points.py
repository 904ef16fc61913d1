"""Components of installed packages: by name, lazily, and under the rules of trust."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sslengine import registry
from sslengine.command.arguments import make_parser
from sslengine.command.front import main
from sslengine.command.train import choose
from sslengine.config.resolve import resolve
from sslengine.errors import ConfigError, UntrustedError
from sslengine.registry import LOSSES, TRANSFORMS
from sslengine.testing.runs import Spec, run
from sslengine.trust import Opened, closed
from tests.integration.test_adding_a_method import DOC, block
from tests.registries import as_before

# Installs a package in a folder: its entry points by group, and the text of its module.
Install = Callable[..., str]
KINDS = {
    "methods": registry.LOSSES, "trunks": registry.TRUNKS, "sources": registry.DATA_SOURCES,
    "transforms": registry.TRANSFORMS, "steps": registry.TRAIN_STEPS, "hooks": registry.HOOKS,
}  # fmt: skip
PARTS = """
import numpy as np
from PIL import Image
from sslengine.data.sources.base import DataSource
from sslengine.engine.step import TrainStep
from sslengine.hooks.events import Hook
from sslengine.models.trunks.resnet import ResNet
from tests.command.tried import Sound

seen = []

class Brighter:
    def __init__(self, by: int = 1):
        self.by = by
    def __call__(self, image):
        seen.append(("transform", self.by))
        return image

class Noise(DataSource):
    def __len__(self):
        return 12
    def image(self, index):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        return Image.fromarray(pixels)
    def path(self, index):
        return f"noise {index}"

class Step(TrainStep):
    def read(self, task):
        seen.append("step")
        return super().read(task)

class Sees(Hook):
    def on_end(self, task):
        seen.append(type(task.base_model.trunk).__name__)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def put(
        module: str, points: dict[str, dict[str, str]], text: str, folder: str = "site-packages"
    ) -> str:
        info = tmp_path / folder / f"{module}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        lines = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in named.items())
            for group, named in points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (info.parent / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(info.parent))
        return module

    with ExitStack() as stack:
        for each in KINDS.values():
            stack.enter_context(as_before(each))
        yield put


def _points(module: str) -> dict[str, dict[str, str]]:
    things = {"methods": "Sound", "trunks": "ResNet", "sources": "Noise", "transforms": "Brighter",
              "steps": "Step", "hooks": "Sees"}  # fmt: skip
    return {f"sslengine.{kind}": {f"a_{kind}": f"{module}:{name}"} for kind, name in things.items()}


def test_they_are_listed_without_an_import(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    module = install("listed_parts", _points("listed_parts"), "raise RuntimeError")
    for kind, verb in zip(
        ("methods", "methods", "trunks", "sources", "transforms", "steps", "hooks"),
        ("methods", "losses", "models", "sources", "transforms", "train-steps", "hooks"),
        strict=True,
    ):
        assert main(["list", verb]) == 0
        assert f"a_{kind}" in capsys.readouterr().out.split()
    assert module not in sys.modules


def test_they_work_by_name_in_a_run(install: Install, tmp_path: Path) -> None:
    module = install("used_parts", _points("used_parts"), PARTS)
    overrides = (
        "config=testing/small", "config.LOSS={name: a_methods, dim: 6}",
        "config.DATA.TRAIN.DATA_SOURCES=[a_sources]", "config.DATA.TRAIN.LABEL_SOURCES=[]",
        "config.DATA.TRAIN.LABEL_TYPE=zero", "config.DATA.TRAIN.TRANSFORMS.2={name: a_transforms, by: 4}",
        "config.TRAINER.TRAIN_STEP_NAME=a_steps", "config.HOOKS.EXTRA=[a_hooks]",
        "config.MODEL.TRUNK.NAME=a_trunks",
    )  # fmt: skip
    assert len(run(Spec(overrides), tmp_path / "run").losses) == 4
    seen = sys.modules[module].seen
    assert ("transform", 4) in seen
    assert "step" in seen
    assert seen[-1] == "ResNet"


def test_names_of_ours_win_and_a_clash_is_told(install: Install) -> None:
    name, text = "simclr_info_nce_loss", "class Mine: pass"
    install(
        "clashing", {"sslengine.methods": {name: "clashing:Mine", "both": "clashing:Mine"}}, text
    )
    install("clashing_too", {"sslengine.methods": {"both": "clashing_too:Mine"}}, text)
    found = resolve(["config=testing/small"], [])
    assert found.config.LOSS.name == name
    assert any(
        each.startswith("config.LOSS.name") and "clashing:Mine" in each for each in found.warnings
    )
    with pytest.raises(ConfigError, match=r"^config\.LOSS\.name"):
        LOSSES.get("both", "config.LOSS.name")
    assert not {"clashing", "clashing_too"} & {*sys.modules}


@pytest.mark.parametrize("folder", ["site-packages", "project"])
def test_a_run_from_elsewhere_gets_installed_code_alone(install: Install, folder: str) -> None:
    module = f"parts_in_{folder.partition('-')[0]}"
    named = {"sslengine.transforms": {"Elsewhere": f"{module}:Mine"}}
    install(module, named, "class Mine: pass", folder)
    with closed(Opened("config.yaml")):
        if folder == "site-packages":
            assert TRANSFORMS.get("Elsewhere").__module__ == module
            return
        with pytest.raises(UntrustedError, match="config.DATA"):
            TRANSFORMS.get("Elsewhere", "config.DATA")
    assert module not in sys.modules
    with closed(Opened("config.yaml", typed=frozenset({"Elsewhere"}))):
        assert TRANSFORMS.get("Elsewhere").__module__ == module


def test_the_package_of_the_page(install: Install, tmp_path: Path, photos: Path) -> None:
    text = DOC.read_text()
    toml = pytest.importorskip("tomllib", reason="Python 3.10 has none")
    points = toml.loads(block(text, "`pyproject.toml`", "toml"))["project"]["entry-points"]
    install("contrast", points, block(text, "`contrast.py`", "python"))
    (name,) = points["sslengine.methods"]
    (tmp_path / "shared.yaml").write_text(block(text, "with the package installed", "yaml"))
    found = resolve(["config=shared"], [str(tmp_path)]).config
    assert (found.LOSS.name, found.LOSS[name].temperature) == (name, 0.2)
    words = [str(photos), f"--method={name}", "--device=cpu"]
    chosen, _ = choose(make_parser("sslengine.command.train").parse_args(words))
    assert f"config.LOSS.name={name}" in chosen
