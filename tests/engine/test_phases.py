from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslengine.engine.phases import (
    Phase,
    Progress,
    RunLength,
    count_updates,
    next_phase,
    place_again,
    plan_phases,
    plan_test,
)
from sslengine.engine.state import ALONE, Group, find_group
from sslengine.errors import ConfigError


def _kinds(phases: list[Phase]) -> str:
    return "".join("T" if phase.train else "e" for phase in phases)


@pytest.mark.parametrize(
    ("epochs", "every", "kinds"),
    [(3, 1, "TeTeTe"), (4, 2, "TeTTeTe"), (3, 10, "TeTTe"), (1, 5, "Te")],
)
def test_a_test_phase_after_epochs_0_n_2n_and_the_last(epochs: int, every: int, kinds: str) -> None:
    assert _kinds(plan_phases(RunLength(epochs, test_every=every), 5, 2)) == kinds


def test_only_the_test() -> None:
    (phase,) = plan_test(7)
    assert (phase.train, phase.steps) == (False, 7)
    with pytest.raises(ConfigError, match="TEST_ONLY"):
        plan_test(0)


def test_an_epoch_in_several_phases() -> None:
    phases = plan_phases(RunLength(2, phases_per_epoch=3), 10)
    assert [(p.epoch, p.first_step, p.last_step) for p in phases] == [
        (0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3), (1, 3, 6), (1, 6, 10),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="4 phases cannot share an epoch of 3 steps"):
        plan_phases(RunLength(2, phases_per_epoch=4), 3)


def test_a_length_in_iterations_ends_within_an_epoch() -> None:
    phases = plan_phases(RunLength(100, 25, test_every=2), 10, 2)
    assert [p.steps for p in phases if p.train] == [10, 10, 5]
    assert _kinds(phases) == "TeTTe"
    assert RunLength(100, num_iterations=25).epochs(10) == 2.5
    assert RunLength(7).epochs(10) == 7.0


@given(
    steps=st.integers(1, 30),
    iterations=st.integers(1, 100),
    parts=st.integers(1, 5),
)
def test_iterations_are_exact_and_in_order(steps: int, iterations: int, parts: int) -> None:
    parts = min(parts, steps)
    phases = plan_phases(RunLength(0, iterations, parts), steps)
    seen = [(p.epoch, step) for p in phases for step in range(p.first_step, p.last_step)]
    assert seen == [(i // steps, i % steps) for i in range(iterations)]
    assert [p.train_index for p in phases] == list(range(len(phases)))


def test_updates_count_the_incomplete_group_of_each_phase() -> None:
    phases = plan_phases(RunLength(2), 5, 2)
    assert count_updates(phases, 1) == 10
    assert count_updates(phases, 2) == 6  # 2 + 2 + 1 steps, twice


# ---- tests by iteration


def test_a_train_phase_goes_on_after_a_test() -> None:
    phases = plan_phases(RunLength(2, test_every_iterations=4), 5, 3)
    assert phases == [
        Phase(0, True, 0, 0, 0, 4, 0, 5), Phase(1, False, 0, 0, 0, 3),
        Phase(2, True, 0, 0, 0, 5, 4, 5),
        Phase(3, True, 1, 1, 0, 3, 0, 5), Phase(4, False, 1, 1, 0, 3),
        Phase(5, True, 1, 1, 0, 5, 3, 5), Phase(6, False, 1, 1, 0, 3),
    ]  # fmt: skip
    assert [phase.complete for phase in phases if phase.train] == [False, True, False, True]


def _groups(phases: list[Phase], accumulate: int) -> list[tuple[int, int, Group]]:
    """Of each train step: epoch, step of the epoch, place in its group."""
    found = []
    for phase in phases:
        sizes = [4] * phase.steps
        if phase.train:
            found += [
                (
                    phase.epoch,
                    phase.first_step + step,
                    find_group(step, sizes, sizes, accumulate),
                )
                for step in range(phase.begin, phase.steps)
            ]
    return found


@given(
    steps=st.integers(1, 12),
    iterations=st.integers(1, 40),
    parts=st.integers(1, 3),
    accumulate=st.integers(1, 4),
    every=st.integers(1, 15),
)
def test_tests_change_nothing_of_what_is_trained(
    steps: int, iterations: int, parts: int, accumulate: int, every: int
) -> None:
    schedule = RunLength(0, iterations, min(parts, steps), 1, every, accumulate)
    plain, phases = plan_phases(schedule, steps), plan_phases(schedule, steps, 2)
    assert _groups(phases, accumulate) == _groups(plain, accumulate)
    assert count_updates(phases, accumulate) == count_updates(plain, accumulate)
    assert [p.train_index for p in phases if p.train and p.complete] == list(range(len(plain)))
    made, tested = 0, []
    for phase in phases:
        made += phase.own_steps if phase.train else 0
        if not phase.train:
            tested.append(made)
    # One test for each multiple of `every`, less than a group of batches after it.
    assert tested == sorted(set(tested))
    assert all(any(due <= at < due + accumulate or at == made for at in tested)
               for due in range(every, iterations + 1, every))  # fmt: skip
    assert all(at % every < accumulate or at == made for at in tested)
    assert tested[-1] == made == iterations


# ---- a checkpoint's place, in a run that is tested at other times


def _walk(phases: list[Phase]) -> list[Progress]:
    """All that a run through these phases may save."""
    found, made = [], 0
    for phase in phases:
        for step in range(phase.begin, phase.steps + 1):
            iteration = made + (step - phase.begin if phase.train else 0)
            found.append(Progress(phase.index, step, phase.steps, int(not phase.train), iteration))
        made += phase.own_steps if phase.train else 0
    return found


def _left(phases: list[Phase], place: Progress) -> list[tuple[bool, int, int]]:
    """The steps that are yet to be made: of training or not, epoch, step."""
    index = next_phase(phases, place.phase, place.step)
    here = place.step if index == place.phase else None
    return [
        (phase.train, phase.epoch, phase.first_step + step)
        for phase in phases[index:]
        for step in range(phase.begin if here is None or phase.index > index else here, phase.steps)
    ]


schedules = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"test_every": st.integers(1, 4)}),
    st.fixed_dictionaries({"test_every_iterations": st.integers(1, 7)}),
)


@given(steps=st.integers(1, 6), epochs=st.integers(1, 4), then=schedules, now=schedules)
def test_a_saved_place_is_found_again(
    steps: int, epochs: int, then: dict[str, Any], now: dict[str, Any]
) -> None:
    before, after = (
        plan_phases(RunLength(epochs, **each), steps, 2 if each else 0) for each in (then, now)
    )
    for saved in _walk(before):
        assert _left(before, place_again(before, saved)) == _left(before, saved)
        found = place_again(after, saved)
        trained = [step for step in _left(after, found) if step[0]]
        assert trained == [step for step in _left(before, saved) if step[0]]
        assert found.iteration == saved.iteration
        if before == after:
            assert (found.phase, found.step) == (saved.phase, saved.step)


def test_a_run_that_was_complete_goes_on_with_more_epochs() -> None:
    short, long = plan_phases(RunLength(1), 3, 2), plan_phases(RunLength(2), 3, 2)
    complete = _walk(short)[-1]
    assert _left(long, place_again(long, complete)) == _left(long, _walk(short)[-1])
    assert [step[:2] for step in _left(long, place_again(long, complete))] == [
        (True, 1), (True, 1), (True, 1), (False, 1), (False, 1),
    ]  # fmt: skip


def test_a_test_of_another_set_is_made_from_its_start() -> None:
    before, after = plan_phases(RunLength(2), 3, 5), plan_phases(RunLength(2), 3, 4)
    within = Progress(phase=1, step=4, of=5, testing=1, iteration=3)
    assert _left(after, place_again(after, within))[:5] == [
        (False, 0, 0), (False, 0, 1), (False, 0, 2), (False, 0, 3), (True, 1, 0),
    ]  # fmt: skip
    assert _left(before, place_again(before, within))[0] == (False, 0, 4)


@pytest.mark.parametrize(
    ("length", "key"),
    [(RunLength(None, 99_999_999_999), "num_iterations"), (RunLength(10_000_000), "num_epochs")],
)
def test_a_run_of_too_many_phases_is_refused_before_they_are_laid_out(
    length: RunLength, key: str
) -> None:
    with pytest.raises(ConfigError, match=f"config.OPTIMIZER.{key}: .*at most 1000000"):
        plan_phases(length, train_steps=4)


def test_groups_and_the_last_that_is_incomplete() -> None:
    sizes = [4, 4, 4, 4, 3]
    groups = [find_group(step, sizes, sizes, 2) for step in range(5)]
    assert [(g.first, g.last, g.weight) for g in groups] == [
        (True, False, 0.5),
        (False, True, 0.5),
        (True, False, 0.5),
        (False, True, 0.5),
        (True, True, 1.0),
    ]


def test_unequal_shares_of_ranks_weigh_by_their_samples() -> None:
    """Averaged over ranks, each sample of the group counts the same."""
    own, of_all = ([2, 1], [2, 2]), [4, 3]
    weights = [[find_group(step, mine, of_all, 2, 2).weight for step in range(2)] for mine in own]
    for mine, its in zip(own, weights):
        for size, weight in zip(mine, its):
            assert weight / 2 / size == pytest.approx(1 / 7)
    assert find_group(0, [4], [8], 1, 2) == ALONE
