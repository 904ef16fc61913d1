"""`--show` in a process of its own: here torch is imported already."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from sslengine.config.resolve import resolve
from sslengine.config.signature_in_source import arguments_of
from sslengine.launch import cli
from tests.config.test_shipped import RUNS
from tests.tail import slow_but

_SHOW_ALL = """
import json, sys
from sslengine import catalog
from sslengine.config.names_of_torch import names_only
from sslengine.launch import cli
texts = {}
with names_only():
    for name in json.loads(sys.argv[1]):
        try:
            texts[name] = cli.shown([f"config={name}"], [])
        except BaseException:  # of any kind: the command then does the same with torch
            continue
print(json.dumps(texts))
"""
_NO_RESULT = """
import sys
from pathlib import Path
from sslengine.config.names_of_torch import without_torch
from sslengine.registry import import_dotted
def asks_torch():
    import torch
    return "one" if torch.cuda.is_available() else "none"
def prints_torch():
    import torch
    return f"{torch.nn.functional}"
def signature_of_unknown():
    import inspect, torch
    return str(inspect.signature(torch.nn.NoSuchModule))
def runs_code():
    return str(import_dotted("mine:VALUE"))
def fails():
    raise ValueError
def warns():
    print("careful", file=sys.stderr)
    return "text"
for each in (asks_torch, prints_torch, signature_of_unknown, runs_code, fails, warns):
    assert without_torch(each) is None, each
assert without_torch(lambda: "ä" * 10**6) == "ä" * 10**6
assert "torch" not in sys.modules
assert not Path("imported").exists()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # paths are shown as they are from here
    return tmp_path


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def _expect_alike(text: str, with_torch: str) -> None:
    """In any order, and here other tests may have added sections to the schema."""
    lines, others = set(text.splitlines()), set(with_torch.splitlines())
    assert lines <= others
    assert {line for line in others if "  # " in line} <= lines  # set by someone, or derived


@pytest.mark.parametrize("name", slow_but(["dinov2"], ["moco", "dinov2", "simsiam"]))
def test_show_prints_what_a_run_uses_and_imports_no_torch(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [f"config=quickstart/{name}", "+config.OPTIMIZER.args.maximize=true", "--show"]
    done = _python("-X", "importtime", "-m", "sslengine", *command)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sslengine.data.augment.operations.crop" in imported  # its file imports torch
    assert "torch._ops" not in imported  # what torch itself imports
    assert cli.main(command) == 0
    _expect_alike(done.stdout, capsys.readouterr().out)


def test_what_names_cannot_say_has_no_result(folder: Path) -> None:
    (folder / "mine.py").write_text("open('imported', 'w').close()\nVALUE = 1\n")
    _python("-c", _NO_RESULT)


def test_the_arguments_of_a_class_are_read_from_its_file() -> None:
    from torch.optim import AdamW
    from torchvision.transforms import RandomResizedCrop

    for each, path in ((AdamW, "torch.optim.AdamW"),
                       (RandomResizedCrop, "torchvision.transforms.RandomResizedCrop")):  # fmt: skip
        found = arguments_of(path)
        assert found is not None
        code = each.__init__.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        assert tuple(a.arg for a in (*found.args, *found.kwonlyargs)) == names
        assert len(found.defaults) == len(each.__init__.__defaults__ or ())
    assert arguments_of("torch.optim.NoSuchOptimizer") is None


@pytest.mark.slow
def test_every_shipped_file_is_shown_alike() -> None:
    shown = json.loads(_python("-c", _SHOW_ALL, json.dumps(list(RUNS))).stdout)
    for name, text in shown.items():
        _expect_alike(text, cli.shown([f"config={name}"], []))
    others = {name for name in RUNS if name not in shown}
    assert others == {name for name in RUNS if _is_of_timm(resolve([f"config={name}"]).config)}, (
        "the other networks say their widths without torch"
    )


def _is_of_timm(config: DictConfig) -> bool:
    """The student, or the teacher that it is distilled from."""
    teacher = OmegaConf.select(config, "LOSS.distillation_loss.teacher.timm")
    return config.MODEL.TRUNK.NAME == "timm" or bool(teacher)
