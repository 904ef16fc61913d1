"""Every tool that README or docs/ name starts, tells its options, and does its work in some test."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import warm
from tests.test_pages import PAGES, ROOT, SCRIPTS

_TEXT = "\n".join(page.read_text() for page in PAGES)
_PATHS = re.findall(r"(?<![\w/])((?:tools|extra_scripts)/[\w/]+\.py|bench_\w+\.py)\b", _TEXT)
_NAMES = {Path(each).name for each in _PATHS}
_PROGRAMS = {each.stem: each for each in SCRIPTS if "__main__" in each.read_text()}
NAMED = sorted(stem for stem, each in _PROGRAMS.items() if each.name in _NAMES)
# README names their folder.
SCRIPTS_BESIDE = sorted(each.stem for each in ROOT.glob("extra_scripts/*.py"))

# The least that these do: a minute or two of imports and steps on a quiet machine.
SMALLEST = {
    "bench_gradcache": ["--rounds", "1"],
    "bench_methods": ["dino", "--batch", "2", "--rounds", "1"],
    "bench_paths": ["--files", "1000", "--workers", "1", "--batches", "2"],
    "bench_startup": ["--rounds", "1"],
}
NEEDS = {"bench_methods": "lightly"}
# Others run in tests of their own: of tests/tools/test_NAME.py, where nothing else is said.
_VISSL = "integration/test_configs.py::test_vissls_file"
RUN_BY = {
    "bench_data": "tools/test_benchmarks.py::test_the_times_of_augmentation",
    "bench_end_to_end": "tools/test_benchmarks.py::test_the_engine_runs_from_files_to_steps",
    "bench_engine": "tools/test_benchmarks.py::test_a_race_times_every_contestant",
    "bench_evaluation": "tools/test_benchmarks.py::test_the_table_of_evaluation",
    "bench_extraction": "tools/test_benchmarks.py::test_the_table_of_extraction",
    "bench_gpu": "tools/test_gpu_report.py::test_the_whole_command_on_a_cpu",
    "bench_packed": "tools/test_benchmarks.py::test_the_table_of_packed",
    "bench_similarity": "tools/test_benchmarks.py::test_the_table_of_similarity",
    "chaos": "test_a_run_survives",
    "cluster_features_and_label": "engines/test_benchmarks.py::test_clusterfit",
    "compare_ranks": "tools/test_benchmarks.py::test_ranks_and_shards_compute_what_one_rank_does",
    "config_schema": "config/test_json_schema.py::test_it_is_up_to_date",
    "instance_retrieval_test": _VISSL,
    "low_shot_test": _VISSL,
    "methods_table": "test_the_real_command_takes_the_folder_of_a_job",
    "nearest_neighbor_test": _VISSL,
    "plain_train": "test_a_run_tells_the_losses_and_the_accuracies",
    "recipe_needs": "test_the_sentence_ends_the_head_and_is_replaced",
    "run": "tools/test_ten_tasks.py::test_all_in_this_environment",
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
    if tool in NEEDS and not find_spec(NEEDS[tool]):
        pytest.skip(f"needs {NEEDS[tool]}")
    command = [sys.executable, str(_PROGRAMS[tool]), *SMALLEST[tool]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout)
