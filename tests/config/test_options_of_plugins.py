"""A component outside the repository brings a dataclass of options, whatever its kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from sslengine.launch import cli
from sslengine.monitor.history import read

PLUGIN = """
from dataclasses import dataclass

from sslengine.data.batch.collators import simclr_collator
from sslengine.data.sources.generated import SyntheticSource
from sslengine.hooks import events
from sslengine.monitor.writers import Writer
from sslengine.registry import (
    register_collator, register_data_source, register_head, register_hook, register_scheduler,
    register_transform, register_writer,
)
from torch import nn


@dataclass
class SourceOptions:
    # Needed by the plugin.
    FLAVOUR: str
    # Added to each label.
    LABEL_SHIFT: int = 0

    def check(self):
        if self.LABEL_SHIFT < 0:
            yield f"LABEL_SHIFT: expected 0 or more, got {self.LABEL_SHIFT}."


@dataclass
class Amount:
    # How much of it the plugin takes.
    amount: float = 0.5
    # In which steps.
    every: int = 1

    def check(self):
        if self.amount < 0:
            yield f"amount: expected 0 or more, got {self.amount}."


@register_data_source("p_source", options=SourceOptions)
class Source(SyntheticSource):
    def __init__(self, options, split, position=0):
        super().__init__(options, split, position)
        print("SOURCE", options.FLAVOUR, options.LABEL_SHIFT)


@register_transform("PTransform", options=Amount)
class PTransform:
    def __init__(self, options):
        print("TRANSFORM", options.amount)

    def __call__(self, image):
        return image


@register_collator("p_collator", options=Amount)
def collate(samples, options):
    print("COLLATOR", options.amount, len(samples))
    return simclr_collator(samples)


@register_hook("p_hook", options=Amount)
class Hook(events.Hook):
    def __init__(self, options):
        print("HOOK", options.amount)

    def on_start(self, task): ...


@register_writer("p_writer", options=Amount)
class TheirWriter(Writer):
    def __init__(self, run, options):
        print("WRITER", options.amount)

    def write(self, record): ...


@register_head("p_head", options=Amount)
class Head(nn.Identity):
    def __init__(self, options):
        super().__init__()
        print("HEAD", options.amount)


@register_scheduler("p_scheduler", options=Amount)
def scheduler(options):
    print("SCHEDULER", options.amount)
    return lambda where: options.amount * 1e-3
"""
TRAIN, LR = "config.DATA.TRAIN", "config.OPTIMIZER.param_schedulers.lr"
RUN = [
    "config=testing/small", "config.PLUGINS=[options_plugin]", "config.OPTIMIZER.num_iterations=2",
    f"{TRAIN}.DATA_SOURCES=[p_source]", f"{TRAIN}.FLAVOUR=salt", f"{TRAIN}.LABEL_SHIFT=1",
    f"{TRAIN}.LABEL_SOURCES=[]", f"{TRAIN}.DATA_LIMIT=8", f"{TRAIN}.BATCHSIZE_PER_REPLICA=4",
    f"{TRAIN}.TRANSFORMS=[{{name: ImgReplicatePil, num_times: 2}}, "
    f"{{name: PTransform, amount: 0.25}}, {{name: ToTensor}}]",
    f"{TRAIN}.COLLATE_FUNCTION=p_collator", f"{TRAIN}.COLLATE_FUNCTION_PARAMS={{amount: 0.75}}",
    "config.HOOKS.EXTRA=[{name: p_hook, amount: 2.0}]",
    "config.HOOKS.WRITERS=[{name: p_writer, amount: 4.0}]",
    "config.MODEL.HEAD.PARAMS=[[[mlp, {dims: [32, 8]}], [p_head, {amount: 5.0}]]]",
    f"{LR}={{name: p_scheduler, amount: 3.0}}", "config.TEST_MODEL=false",
    "config.MACHINE.DEVICE=cpu",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
]  # fmt: skip
WRONG = {
    f"{TRAIN}.LABEL_SHIFTED=1": "LABEL_SHIFTED: unknown key. Did you mean 'LABEL_SHIFT'",
    f"{TRAIN}.LABEL_SHIFT=one": "LABEL_SHIFT: expected int",
    f"{TRAIN}.LABEL_SHIFT=-1": "LABEL_SHIFT: expected 0 or more, got -1",
    f"{TRAIN}.FLAVOUR=null": "FLAVOUR: SourceOptions requires this argument",
    f"{TRAIN}.IMAGE_COLUMN=x": "IMAGE_COLUMN: it is a key of the data sources array_file, "
    "csv_filelist, huggingface_dataset, huggingface_stream, webdataset, webdataset_stream; here "
    "p_source is",
    "config.DATA.TEST.IMAGE_COLUMN=x": "webdataset_stream; here none is chosen",
    f"{TRAIN}.TRANSFORMS.1.amont=1": "TRANSFORMS.1.amont: Amount takes no such argument",
    f"{TRAIN}.TRANSFORMS.1.amount=x": "TRANSFORMS.1.amount: expected float, got 'x'",
    f"{TRAIN}.COLLATE_FUNCTION_PARAMS.amont=1": "PARAMS.amont: Amount takes no such argument",
    f"{TRAIN}.COLLATE_FUNCTION_PARAMS.amount=-1": "PARAMS.amount: expected 0 or more, got -1",
    "config.HOOKS.WRITERS.0.amount=-1": "WRITERS.0.amount: expected 0 or more, got -1",
    "config.MODEL.HEAD.PARAMS.0.1.1.amount=-1": "PARAMS.0.1.1.amount: expected 0 or more, got -1",
    "config.HOOKS.EXTRA.0.amount=x": "EXTRA.0.amount: expected float, got 'x'",
    f"{LR}.amont=1": "lr.amont: unknown key. Did you mean 'amount'",
    f"{LR}.amount=x": "lr.amount: expected float",
    f"{LR}.power=2": "lr.power: it is a key of the scheduler polynomial; here p_scheduler is",
}


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "options_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_they_reach_each_component_in_a_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*RUN, "config.CHECKPOINT.DIR=run"]) == 0
    said = capfd.readouterr().out
    for line in ("SOURCE salt 1", "TRANSFORM 0.25", "COLLATOR 0.75 4", "HOOK 2.0", "SCHEDULER 3.0",
                 "WRITER 4.0", "HEAD 5.0"):  # fmt: skip
        assert line in said


def test_those_of_the_pages(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The hook of docs/hooks.md and the source of docs/data_sources.md, in a run."""
    for page in ("hooks", "data_sources"):
        text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
        (tmp_path / f"page_{page}.py").write_text(text.split("```python\n")[1].split("```")[0])
    Image.effect_noise((64, 32), 50).save(tmp_path / "slide.png")
    its_run = [
        "config=testing/small", *RUN[2:3], *RUN[-4:], "config.LOG_FREQUENCY=1",
        "config.PLUGINS=[page_hooks,page_data_sources]",
        f"{TRAIN}.DATA_SOURCES=[tiles]", f"{TRAIN}.DATA_PATHS=[slide.png]", f"{TRAIN}.TILE_SIDE=16",
        f"{TRAIN}.LABEL_SOURCES=[]", f"{TRAIN}.LABEL_TYPE=zero", f"{TRAIN}.BATCHSIZE_PER_REPLICA=8",
        "config.HOOKS.EXTRA=[{name: largest_output, every: 2}]", "config.CHECKPOINT.DIR=run",
    ]  # fmt: skip
    assert cli.main(its_run) == 0
    assert "WARNING" not in capfd.readouterr().err
    steps = [each for each in read("run") if "loss" in each]
    assert ["largest_output" in each for each in steps] == [True, False]
    assert [each["epoch"] for each in steps] == [0, 1]  # one batch of eight tiles in each


@pytest.mark.parametrize("argument", WRONG)
def test_mistakes_are_told(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*RUN, argument, "--show"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert WRONG[argument] in told
    assert "options_plugin" in sys.modules
