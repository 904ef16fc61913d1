"""What recipes need, estimated: operations, bytes, and the sentence in the heads of their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torchvision.models import ResNet50_Weights

from sslengine.config.compose import shipped_configs
from sslengine.config.resolve import resolve
from tools.recipe_needs import all_recipes, cost_of, head_with, main, needs

# What torchvision says of its ResNet-50: multiplications and additions at 224 pixels, parameters.
RESNET50 = ResNet50_Weights.IMAGENET1K_V1.meta
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
