"""What recipes need, estimated: operations, bytes, and the sentence in the heads of their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import ResNet50_Weights

from sslengine.config.compose import shipped_configs
from sslengine.config.resolve import resolve
from tools.recipe_needs import Cost, Kept, all_recipes, cost_of, head_with, main, needs

# What torchvision says of its ResNet-50: multiplications and additions at 224 pixels, parameters.
RESNET50 = ResNet50_Weights.IMAGENET1K_V1.meta
GIB = 2**30
SENTENCE = re.compile(
    r"Needs \(estimates, docs/methods\.md#what-a-recipe-needs\): [\d.]+ GiB of "
    r"(GPU memory for \d+ images a step; [\d.]+ h of an A100 for 100 epochs of 100,000 images; "
    r"5,000 images or more|memory of each of \d+ GPUs; [\d.]+ h if they are A100; the 1\.28 million "
    r"images of ImageNet-1k)\."
)


# A pass backward costs two forward, a teacher's is forward alone; heads are below 2 %.
@pytest.mark.parametrize(
    ("recipe", "passes"), [("rotnet", 3), pytest.param("byol", 2 * 3 + 2, marks=pytest.mark.slow)]
)
def test_operations_are_those_of_torchvisions_table(recipe: str, passes: int) -> None:
    cost = cost_of(resolve([f"config=photos/{recipe}", "config.MACHINE.DEVICE=cpu"]).config)
    assert cost.flops == pytest.approx(passes * 2e9 * RESNET50["_ops"], rel=0.02)
    parameters = RESNET50["num_params"] - (2048 + 1) * 1000  # without its classifier
    if recipe == "rotnet":
        assert cost.trained == parameters + (2048 + 1) * 4
        assert cost.teacher == 0
    else:
        assert min(cost.teacher, cost.trained) > parameters


def test_kept_are_inputs_of_layers_each_once_without_weights() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    kept = Kept(network)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda each: each):
        network(torch.ones(11, 5))
    assert kept.bytes == 4 * 11 * (5 + 7)  # the image, and what is both ReLU's output and an input


def test_memory_and_hours_follow_from_counts() -> None:
    cost = Cost(flops=6e9, kept=GIB, trained=GIB // 16, teacher=GIB // 4)
    # 1 for the kernels; AdamW's parameters 1, a teacher's 1, half of 10 images' bytes: and a fifth.
    assert cost.memory(10, "adamw") == pytest.approx(1 + 1.2 * (1 + 1 + 5))
    assert cost.memory(10, "sgd") == pytest.approx(1 + 1.2 * (0.75 + 1 + 5))
    assert cost.hours(3600 * 1e4 * 8, gpus=8) == pytest.approx(1)


def test_the_sentence_ends_the_head_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "# @package _global_\n# A recipe.\ndefaults: [a]\nconfig: {SEED: 1}\n"
    once = head_with(text, "9 GiB. " + "word " * 40)
    lines = once.splitlines()
    assert lines[:2] == ["# @package _global_", "# A recipe."]
    assert [line[:11] for line in lines[2:4]] == ["# Needs (es", "# word word"]
    assert lines[-2:] == ["defaults: [a]", "config: {SEED: 1}"]
    assert head_with(once, "8 GiB.") == head_with(text, "8 GiB.")
    file = tmp_path / "photos/mine.yaml"
    file.parent.mkdir()
    file.write_text(text)
    monkeypatch.setattr("tools.recipe_needs.shipped_configs", lambda: tmp_path)
    monkeypatch.setattr("tools.recipe_needs.needs", lambda name, overrides: f"{name} {overrides}")
    assert main(["photos/mine", "config.SEED=2", "--write"]) == 0
    assert "photos/mine ['config.SEED=2']" in file.read_text()


@pytest.mark.parametrize("name", all_recipes())
def test_the_head_of_every_recipe_says_what_it_needs(name: str) -> None:
    """`python tools/recipe_needs.py NAME --write` writes it."""
    text, _ = _head(name)
    assert SENTENCE.search(text), text


@pytest.mark.parametrize(
    "name",
    [
        each if each == "photos/rotnet" else pytest.param(each, marks=pytest.mark.slow)
        for each in all_recipes()
    ],
)
def test_heads_are_up_to_date(name: str) -> None:
    text, file = _head(name)
    assert needs(name) in text, f"python tools/recipe_needs.py {name} --write"
    assert head_with(file.read_text(), needs(name)) == file.read_text()


def _head(name: str) -> tuple[str, Path]:
    """Its comments, unwrapped."""
    file = shipped_configs() / f"{name}.yaml"
    lines = file.read_text().partition("defaults:")[0].splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines), file
