"""Every tool that README or docs/ name starts, tells its options, and does its work in some test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import ResNet50_Weights

from sslengine.config.compose import shipped_configs
from sslengine.config.resolve import resolve
from sslengine.evaluate.outcome import VERSIONS
from tests import warm
from tests.test_pages import PAGES, ROOT, SCRIPTS
from tools import methods_runs, methods_table
from tools.methods_runs import Cost, Job, Row, Scores
from tools.methods_table import BEGINS, END, Measured, table
from tools.recipe_needs import Kept, all_recipes, cost_of, head_with, main, needs
from tools.ten_tasks.run import TASKS

_TEXT = "\n".join(page.read_text() for page in PAGES)
_PATHS = re.findall(r"(?<![\w/])((?:tools|extra_scripts)/[\w/]+\.py|bench_\w+\.py)\b", _TEXT)
_NAMES = {Path(each).name for each in _PATHS}
_PROGRAMS = {each.stem: each for each in SCRIPTS if "__main__" in each.read_text()}
NAMED = sorted(stem for stem, each in _PROGRAMS.items() if each.name in _NAMES)
# README names their folder.
SCRIPTS_BESIDE = sorted(each.stem for each in ROOT.glob("extra_scripts/*.py"))

# The least that these do: a minute or two of imports and steps on a quiet machine.
SMALLEST = {
    "bench_paths": ["--files", "1000", "--workers", "1", "--batches", "2"],
}
# Others run in tests of their own: of tests/tools/test_NAME.py, where nothing else is said.
_VISSL = "integration/test_configs.py::test_vissls_file"
RUN_BY = {
    "bench_data": "tools/test_benchmarks.py::test_the_times_of_augmentation",
    "bench_end_to_end": "tools/test_benchmarks.py::test_the_engine_runs_from_files_to_steps",
    "bench_engine": "tools/test_benchmarks.py::test_a_race_times_every_contestant",
    "bench_evaluation": "tools/test_benchmarks.py::test_the_table_of_evaluation",
    "bench_gpu": "tools/test_gpu_report.py::test_the_whole_command_on_a_cpu",
    "chaos": "test_a_run_survives",
    "cluster_features_and_label": "engines/test_benchmarks.py::test_clusterfit",
    "instance_retrieval_test": _VISSL,
    "low_shot_test": _VISSL,
    "methods_table": "tools/test_named_tools.py::test_the_real_command_takes_the_folder_of_a_job",
    "nearest_neighbor_test": _VISSL,
    "plain_train": "test_a_run_tells_the_losses_and_the_accuracies",
    "recipe_needs": "tools/test_named_tools.py::test_the_sentence_ends_the_head_and_is_replaced",
    "run": "tools/test_named_tools.py::test_all_in_this_environment",
    "run_distributed_engines": _VISSL,
    "train_svm": _VISSL,
    "train_svm_low_shot": _VISSL,
}


@pytest.mark.parametrize("tool", [*NAMED, *SCRIPTS_BESIDE])
def test_it_starts_and_tells_its_options(tool: str, tmp_path: Path) -> None:
    done = warm.run([sys.executable, str(_PROGRAMS[tool]), "--help"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().startswith("usage:")


def test_each_does_its_work_in_some_test() -> None:
    """A tool that a page names anew gets a row above."""
    assert sorted([*SMALLEST, *RUN_BY]) == NAMED
    for tool, test in RUN_BY.items():
        file, _, name = test.rpartition("::")
        text = (ROOT / "tests" / (file or f"tools/test_{tool}.py")).read_text()
        assert f"def {name}(" in text, test


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tool", SMALLEST)
def test_it_runs_with_its_smallest_arguments(tool: str, tmp_path: Path) -> None:
    command = [sys.executable, str(_PROGRAMS[tool]), *SMALLEST[tool]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout)


# ---- What recipes need, estimated: operations, bytes, and the sentence in the heads of their
# files.


SENTENCE = re.compile(
    r"Needs \(estimates, docs/methods\.md#what-a-recipe-needs\): [\d.]+ GiB of "
    r"(GPU memory for \d+ images a step; [\d.]+ h of an A100 for 100 epochs of 100,000 images; "
    r"5,000 images or more|GPU memory; [\d.]+ h of an A100; the [\d,]+ images of [\w-]+|memory of each of "
    r"\d+ GPUs; [\d.]+ h if they are A100; the [\d,.]+( million)? images of [\w-]+)\."
)


# A pass backward costs two forward, a teacher's is forward alone; heads are below 2 %.
@pytest.mark.parametrize(
    ("recipe", "passes"), [("rotnet", 3), pytest.param("byol", 2 * 3 + 2, marks=pytest.mark.slow)]
)
def test_operations_are_those_of_torchvisions_table(recipe: str, passes: int) -> None:
    known = ResNet50_Weights.IMAGENET1K_V1.meta  # at 224 pixels, with a classifier
    cost = cost_of(resolve([f"config=photos/{recipe}", "config.MACHINE.DEVICE=cpu"]).config)
    assert cost.flops == pytest.approx(passes * 2e9 * known["_ops"], rel=0.02)
    assert cost.trained > known["num_params"] - (2048 + 1) * 1000


def test_kept_are_inputs_of_layers_each_once_without_weights() -> None:
    network = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    kept = Kept(network)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda each: each):
        network(torch.ones(11, 5))
    assert kept.bytes == 4 * 11 * (5 + 7)  # the image, and what is both ReLU's output and an input


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


# ---- The table of methods: what is read from a run's folder, what is done again, what is written.


def _measured(
    *knn: float, cost: Cost | None = None, trunk: str = "ResNet", first: int = 1
) -> dict[str, Any]:
    scores = {
        str(seed): asdict(Scores(value, 50.0, 30.0, 40.0, linear_version=VERSIONS["linear"]))
        for seed, value in enumerate(knn, first)
    }
    budget = {"trunk": trunk, "steps": 624, "images_seen": 79_872}
    return {"scores": scores, "cost": cost and asdict(cost), **budget}


def test_what_a_config_says_counts_wherever_it_says_so(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"# @package _global_\n{text}")
        return methods_runs.digest(file)

    one = digest("one", "config: {SEED_VALUE: 1, VERBOSE: True}\n")
    assert one == digest("same", "# a comment\nconfig:\n  VERBOSE:   True\n  SEED_VALUE: 1\n")
    assert one != digest("other", "config: {SEED_VALUE: 2, VERBOSE: True}\n")
    base = digest("base", "config: {VERBOSE: True, SEED_VALUE: 0}\n")
    on_it = digest("on_it", "defaults: [/config/base, _self_]\nconfig: {SEED_VALUE: 1}\n")
    assert one == on_it != base


def test_the_measured_rows_are_those_of_the_configs_as_they_are() -> None:
    measured = Measured(methods_table.MEASURED)
    assert {row.key for row in measured.rows()} == set(json.loads(measured.path.read_text()))


@pytest.mark.parametrize("images", BEGINS)
def test_the_tables_of_the_page_are_those_of_the_measured_rows(images: str) -> None:
    measured = Measured(methods_table.MEASURED)
    _, _, rest = methods_table.DOC.read_text(encoding="utf-8").partition(BEGINS[images])
    found, _, _ = rest.partition(END)
    assert found.strip() == table({row.name: measured.of(row) for row in measured.rows(images)})


@pytest.mark.slow
def test_the_real_command_takes_the_folder_of_a_job(tmp_path: Path) -> None:
    job = Job(Row("simclr"), 0, tmp_path / "simclr_seed0")
    methods_runs.call(job, ["config.DATA.TRAIN.DATA_LIMIT=128", "config.OPTIMIZER.num_epochs=1"])
    assert (job.folder / "checkpoints" / "checkpoint.torch").exists()


def test_a_seed_that_hyper_parameters_were_chosen_on_is_not_in_the_mean() -> None:
    both, alone = _measured(10.0, 70.0, 80.0, first=0), _measured(10.0, first=0)
    assert "| 1, 2 | 75.0 (70.0 to 80.0) |" in table({"a": both})
    assert "| 0 ‡ | 10.0 |" in table({"a": alone})


# ---- The ten tasks: what is counted and when one fails, and all of them with this environment.


TOOL = Path(__file__).resolve().parents[2] / "tools" / "ten_tasks"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_in_this_environment() -> None:
    for name in ("pandas", "numba", "tifffile", "pyarrow", "datasets", "onnxruntime"):
        pytest.importorskip(name)
    command = [sys.executable, str(TOOL / "run.py"), "--seconds", "3000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == len(TASKS) == 10
