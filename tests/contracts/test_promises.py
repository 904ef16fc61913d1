"""Each promise is refused where it is broken, by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sslengine.errors import ConfigError, UnknownNameError
from sslengine.testing import SUITES, BrokenPromise, check, contract, suite_of
from sslengine.testing.promises import promises
from sslengine.testing.run_suite import RunSuite
from tests.contracts import broken
from tests.tail import slow_but

PICTURES = f"{broken.__name__}:Pictures"
METHODS: list[tuple[Any, str, str]] = [
    (broken.QueueOutside, "resumes_bit_exactly", r"QueueOutside\.queue.*: not in the state dict"),
    (broken.ForgetsTheHead, "trains_every_parameter", "finds no gradient"),
    (broken.NotANumber, "trains_with_finite_losses", "the loss of iteration 3 is not finite"),
    (broken.MovesInTests, "tests_change_nothing", r"a test phase has changed loss\.centre"),
    (broken.OwnCentreOnEachRank, "ranks_stay_equal", "ranks differ in centre"),
    (broken.OfOneRank, "ranks_equal_one_process", "4 ranks and with one process differ"),
    (broken.OfOneRank, "accumulation_equals_one_large_batch", "the weights with accumulation and"),
]


@pytest.mark.parametrize(
    ("component", "promise", "told"),
    slow_but(METHODS[:4], METHODS),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_method_that_breaks_a_promise_is_refused(component: Any, promise: str, told: str) -> None:
    with pytest.raises(BrokenPromise, match=told):
        suite_of("method", component, also=[promise]).keep(promise)


OTHERS: list[tuple[str, Any, str, str]] = [
    ("head", broken.AcrossImages, "treats_images_independently", "depends on the other images"),
    ("transform", broken.Mutates, "does_not_change_its_input", "changed its input: data.0"),
    ("transform", broken.HasItsOwnDraws, "resumes_within_an_epoch", "from the second batch on"),
    ("transform", broken.SaysTwo, "makes_the_declared_number_of_views", "3 views, not 2"),
    ("collator", broken.drops_one, "keeps_each_sample", r"the samples \[0, 1, 2\]"),
    ("collator", broken.changes_pixels, "keeps_pixels_if_declared", "it changes pixels"),
    ("source", broken.HandsOutItsOwn, "returns_the_same_image_each_time", "when read again"),
    ("source", broken.NamesNoFiles, "knows_its_files", "files_of names image 0, which is no file"),
    ("optimizer", broken.HasItsOwnRate, "follows_the_learning_rate", "of zero it changes"),
    (
        "meter",
        broken.MeansOfBatches,
        "does_not_depend_on_batch_size",
        "batch size changes .*: mean",
    ),
    ("meter", broken.CountsOutside, "resumes_from_its_state_dict", "differ after a resume: mean"),
    ("hook", broken.ChangesWeights, "does_not_change_the_run", "it changes the run"),
    ("hook", broken.ForgetsItsCount, "resumes_its_state", r"ForgetsItsCount\.count: not in"),
]


@pytest.mark.parametrize(
    ("kind", "component", "promise", "told"),
    slow_but([each for each in OTHERS if each[0] == "transform"], OTHERS),
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_any_other_that_breaks_a_promise_is_refused(
    kind: str, component: Any, promise: str, told: str
) -> None:
    with pytest.raises(BrokenPromise, match=told):
        suite_of(kind, component, also=[promise]).keep(promise)


@pytest.mark.parametrize("promise", suite_of("source", broken.Pictures).promises)
def test_a_sound_source(promise: str) -> None:
    suite_of("source", broken.Pictures, {"LABEL_SOURCES": [PICTURES]}).keep(promise)


def test_all_that_is_broken_is_told_at_once() -> None:
    known = suite_of("method", broken.MovesAndForgets).promises
    others = {
        name: "" for name in known if name not in ("tests_change_nothing", "resumes_bit_exactly")
    }
    with pytest.raises(BrokenPromise) as refused:
        check("method", broken.MovesAndForgets, without=others)
    told = str(refused.value)
    assert "a test phase has changed loss.centre" in told
    assert "MovesAndForgets.steps: not in the state dict" in told


test_one_that_breaks_none = contract(
    "method",
    broken.Sound,
    also=["ranks_equal_one_process"],
    without={"ranks_stay_equal_sharded": "slow"},
)


EQUAL_RANKS = ["ranks_stay_equal", "ranks_stay_equal_sharded"]


@pytest.mark.parametrize("promise", slow_but(EQUAL_RANKS[:1], EQUAL_RANKS))
def test_statistics_of_a_method_are_each_ranks_own(promise: str) -> None:
    """Batch norms of its own, as those of a model with DDP. Other buffers are all ranks'."""
    suite_of("method", broken.PredictsATeacher).keep(promise)
    with pytest.raises(BrokenPromise, match=r"ranks differ in centre\."):
        suite_of("method", broken.OwnCentreBesideIt).keep(promise)


def test_mistakes_of_the_caller_are_told() -> None:
    with pytest.raises(UnknownNameError, match=r"no contract for 'methd'. Did you mean 'method'"):
        contract("methd", broken.Sound)
    with pytest.raises(UnknownNameError, match=r"no promise resumes"):
        contract("method", broken.Sound, also=["resumes"])
    with pytest.raises(ConfigError, match="at the top level of a module"):
        contract("method", lambda output, target: output.sum())
    with pytest.raises(BrokenPromise, match="no loss named 'simclr_infonce'. Did you mean"):
        suite_of("method", "simclr_infonce").keep("trains_with_finite_losses")


@pytest.mark.parametrize("given", [{"overrides": ["config=mine"]}, {"unchanged": ["bias"]}])
@pytest.mark.parametrize(
    ("kind", "component"), [("source", "synthetic"), ("transform", "ToTensor")]
)
def test_what_is_tried_without_a_run_takes_nothing_of_one(
    kind: str, component: str, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="have no effect"):
        suite_of(kind, component, **given)


DOC = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
METHOD = """
from torch import nn

class MyLoss(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight, self.steps = weight, 0

    def forward(self, output, target):
        self.steps += self.training
        one, two = output.chunk(2)
        return self.weight * (one - two).square().mean()
"""


def test_every_kind_and_every_promise_is_there() -> None:
    text = DOC.read_text()
    assert [kind for kind in SUITES if f"`{kind}`" not in text] == []
    shipped = {name for suite in SUITES.values() for name in promises(suite)}
    told = {name for name in re.findall(r"`([a-z_0-9]+)`", text) if name.count("_") > 1}
    assert shipped <= set(re.findall(r"`([a-z_0-9]+)`", text))
    assert told - shipped == set()
    of_runs = promises(RunSuite).items()
    assert all(always != (f"`{name}` (`also`)" in text) for name, always in of_runs)


@pytest.mark.slow
def test_the_test_that_it_shows(tmp_path: Path) -> None:
    """It finds that the steps are counted outside the state dict, and nothing else."""
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    (tmp_path / "my_loss.py").write_text(METHOD)
    (tmp_path / "test_my_loss.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_loss.py", "-k", "finite or resumes or tests"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{DOC.parents[1]}"},
    )  # fmt: skip
    failed = re.findall(r"^FAILED .*\[(\w+)\]", done.stdout, re.MULTILINE)
    assert failed == ["resumes_bit_exactly"], done.stdout
    assert "MyLoss.steps: not in the state dict" in done.stdout
