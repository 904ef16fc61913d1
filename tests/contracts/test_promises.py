"""Each promise is refused where it is broken, by name."""

from __future__ import annotations

from typing import Any

import pytest

from sslengine.errors import ConfigError, UnknownNameError
from sslengine.testing import BrokenPromise, Contract, check, contract
from tests.contracts import broken

PICTURES = f"{broken.__name__}:Pictures"
METHODS: list[tuple[Any, str, str]] = [
    (broken.QueueOutside, "resumes_bit_by_bit", r"QueueOutside\.queue.*: not in the state dict"),
    (broken.CountsSteps, "resumes_bit_by_bit", r"CountsSteps\.steps: not in the state dict"),
    (broken.QueueInTheModule, "resumes_bit_by_bit", "the losses are .* without a kill"),
    (
        broken.ForgetsTheHead,
        "trains_every_parameter",
        r"have not changed: trunk\.conv1\.weight.*more",
    ),
    (broken.NotANumber, "trains_with_finite_losses", "the loss of iteration 2 is not finite"),
    (broken.MovesInTests, "tests_move_nothing", r"a test phase has changed loss\.centre"),
    (broken.DrawsInTests, "tests_move_nothing", r"has changed random streams"),
    (broken.LossInHalf, "trains_with_finite_losses", "the loss is a tensor of float16"),
    (broken.OwnCentreOnEachRank, "ranks_stay_equal", "ranks differ in centre"),
    (broken.OfOneRank, "ranks_equal_one_process", "on two ranks other weights than in one process"),
    (broken.OfOneRank, "accumulated_equals_the_whole_batch", "accumulated other weights"),
]


@pytest.mark.parametrize(
    ("component", "promise", "told"), METHODS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_method_that_breaks_a_promise_is_refused(component: Any, promise: str, told: str) -> None:
    with pytest.raises(BrokenPromise, match=told):
        Contract("method", component, also=[promise]).keep(promise)


OTHERS: list[tuple[str, Any, str, str]] = [
    ("head", broken.OtherInHalf, "is_near_in_bfloat16", "in bfloat16 and"),
    ("head", broken.AcrossImages, "judges_each_image_alone", "depends on the other images"),
    ("transform", broken.Mutates, "leaves_its_input_as_it_is", "changed its input: data.0"),
    ("transform", broken.HasItsOwnDraws, "is_decided_by_the_seed", "it makes other data.0"),
    ("transform", broken.HasItsOwnDraws, "is_found_again", "from the second batch on other values"),
    ("transform", broken.HoldsALambda, "goes_to_a_worker", "it cannot be pickled"),
    ("transform", broken.SaysTwo, "makes_as_many_views_as_it_says", "3 views, not 2"),
    ("collator", broken.drops_one, "keeps_each_sample", r"it keeps \[0, 1, 2\]"),
    ("collator", broken.reverses, "keeps_each_sample", r"it keeps \[3, 2, 1, 0\]"),
    ("collator", broken.changes_pixels, "moves_images_as_it_says", "it changes pixels"),
    ("collator", broken.changes_samples, "leaves_its_input_as_it_is", "changed the samples"),
    ("source", broken.HandsOutItsOwn, "gives_the_same_image_each_time", "when read again"),
    ("source", broken.DrawsFromCommonStreams, "draws_no_random_numbers", "the stream python"),
    ("source", broken.TooFewLabels, "has_a_label_for_each_image", "5 labels of 6 images"),
    ("source", broken.HoldsAnOpenFile, "goes_to_a_worker", "cannot pickle"),
    ("schedule", broken.Remembers, "is_a_function_of_where", "a second call"),
    (
        "schedule",
        broken.no_number_at_the_start,
        "is_a_function_of_where",
        "not finite at where = 0",
    ),
    ("optimizer", broken.HasItsOwnRate, "follows_the_learning_rate", "of zero it moves trunk"),
    ("optimizer", broken.StateOutside, "resumes_bit_by_bit", "the losses are"),
    ("meter", broken.MeansOfBatches, "adds_up", "batches of another size other values: mean"),
    ("meter", broken.CountsOutside, "goes_on_from_its_state", "after a resume other values: mean"),
    ("writer", broken.AppendsForEver, "resumes_without_doubles", "after a kill and a resume"),
    ("writer", broken.LosesTheLast, "gets_every_record_once", r"of losses .* it kept"),
    ("writer", broken.LosesTheLast, "takes_what_is_no_number", "KeyError: 'loss'"),
    ("hook", broken.ChangesWeights, "changes_nothing", "it changes the run"),
    ("hook", broken.DrawsFromTheStreams, "changes_nothing", r"ranks\.0\.rng"),
    ("hook", broken.ForgetsItsCount, "resumes_its_own_state", r"ForgetsItsCount\.count: not in"),
]


@pytest.mark.parametrize(
    ("kind", "component", "promise", "told"), OTHERS, ids=lambda each: getattr(each, "__name__", "")
)
def test_any_other_that_breaks_a_promise_is_refused(
    kind: str, component: Any, promise: str, told: str
) -> None:
    with pytest.raises(BrokenPromise, match=told):
        Contract(kind, component, also=[promise]).keep(promise)


@pytest.mark.parametrize(
    ("component", "promise", "told"),
    [
        (broken.by_chance, "is_always_the_same", "a second call gives another value"),
        (broken.centres_its_features, "leaves_features_as_they_are", "changed its features"),
        (
            broken.of_the_first_rows,
            "does_not_depend_on_the_order",
            "in another order another value",
        ),
    ],
)
def test_an_evaluator_that_breaks_a_promise_is_refused(
    component: Any, promise: str, told: str
) -> None:
    with pytest.raises(BrokenPromise, match=told):
        Contract("evaluator", component, alone=True).keep(promise)


@pytest.mark.parametrize("promise", Contract("source", broken.Pictures).promises)
def test_a_sound_source(promise: str) -> None:
    Contract("source", broken.Pictures, {"LABEL_SOURCES": [PICTURES]}).keep(promise)


def test_all_that_is_broken_is_told_at_once() -> None:
    known = Contract("method", broken.MovesAndForgets).promises
    but = {name: "" for name in known if name not in ("tests_move_nothing", "resumes_bit_by_bit")}
    with pytest.raises(BrokenPromise) as refused:
        check("method", broken.MovesAndForgets, but=but)
    told = str(refused.value)
    assert "a test phase has changed loss.centre" in told
    assert "MovesAndForgets.steps: not in the state dict" in told


test_one_that_breaks_none = contract(
    "method",
    broken.Sound,
    also=["ranks_equal_one_process"],
    but={"ranks_stay_equal_sharded": "slow"},
)


def test_mistakes_of_the_caller_are_told() -> None:
    with pytest.raises(UnknownNameError, match=r"no contract for 'methd'. Did you mean 'method'"):
        contract("methd", broken.Sound)
    with pytest.raises(UnknownNameError, match=r"no promise 'resumes'. Did you mean 'resumes_bit"):
        contract("method", broken.Sound, also=["resumes"])
    with pytest.raises(ConfigError, match="at the top level of a module"):
        contract("method", lambda output, target: output.sum())
    with pytest.raises(BrokenPromise, match="no loss named 'simclr_infonce'. Did you mean"):
        Contract("method", "simclr_infonce").keep("trains_with_finite_losses")


@pytest.mark.parametrize("given", [{"overrides": ["config=mine"]}, {"still": ["bias"]}])
@pytest.mark.parametrize(
    ("kind", "component"), [("source", "synthetic"), ("transform", "ToTensor"), ("writer", "json")]
)
def test_what_is_tried_without_a_run_takes_nothing_of_one(
    kind: str, component: str, given: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(given))}= has no effect"):
        Contract(kind, component, **given).suite  # noqa: B018
