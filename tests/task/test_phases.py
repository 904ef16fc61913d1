from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslengine.errors import ConfigError
from sslengine.task.phases import ByIteration, Length, Phase, count_updates, plan_phases
from sslengine.task.progress import Group, group_of


def _kinds(phases: list[Phase]) -> str:
    return "".join("T" if phase.train else "e" for phase in phases)


@pytest.mark.parametrize(
    ("epochs", "every", "kinds"),
    [(3, 1, "TeTeTe"), (4, 2, "TeTTeTe"), (3, 10, "TeTTe"), (1, 5, "Te")],
)
def test_a_test_phase_after_epochs_0_n_2n_and_the_last(epochs: int, every: int, kinds: str) -> None:
    assert _kinds(plan_phases(Length(epochs), 5, 2, every)) == kinds


def test_no_test_steps_no_test_phases() -> None:
    assert _kinds(plan_phases(Length(2), 5)) == "TT"


def test_only_the_test() -> None:
    (phase,) = plan_phases(Length(5), 0, 7, test_only=True)
    assert (phase.train, phase.steps) == (False, 7)
    with pytest.raises(ConfigError, match="TEST_ONLY"):
        plan_phases(Length(5), 0, 0, test_only=True)


def test_an_epoch_in_several_phases() -> None:
    phases = plan_phases(Length(2, phases_per_epoch=3), 10)
    assert [(p.epoch, p.first_step, p.last_step) for p in phases] == [
        (0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 3), (1, 3, 6), (1, 6, 10),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="4 phases cannot share an epoch of 3 steps"):
        plan_phases(Length(2, phases_per_epoch=4), 3)


def test_a_length_in_iterations_ends_within_an_epoch() -> None:
    phases = plan_phases(Length(100, num_iterations=25), 10, 2, test_every=2)
    assert [p.steps for p in phases if p.train] == [10, 10, 5]
    assert _kinds(phases) == "TeTTe"
    assert Length(100, num_iterations=25).epochs(10) == 2.5
    assert Length(7).epochs(10) == 7.0


@given(
    steps=st.integers(1, 30),
    iterations=st.integers(1, 100),
    parts=st.integers(1, 5),
)
def test_iterations_are_exact_and_in_order(steps: int, iterations: int, parts: int) -> None:
    parts = min(parts, steps)
    phases = plan_phases(Length(0, iterations, parts), steps)
    seen = [(p.epoch, step) for p in phases for step in range(p.first_step, p.last_step)]
    assert seen == [(i // steps, i % steps) for i in range(iterations)]
    assert [p.train_index for p in phases] == list(range(len(phases)))


def test_updates_count_the_incomplete_group_of_each_phase() -> None:
    phases = plan_phases(Length(2), 5, 2)
    assert count_updates(phases, 1) == 10
    assert count_updates(phases, 2) == 6  # 2 + 2 + 1 steps, twice


# ---- tests by iteration


def test_a_train_phase_goes_on_after_a_test() -> None:
    phases = plan_phases(Length(2), 5, 3, by_iteration=ByIteration(4))
    assert phases == [
        Phase(0, True, 0, 0, 0, 4, 0, 5), Phase(1, False, 0, 0, 0, 3),
        Phase(2, True, 0, 0, 0, 5, 4, 5),
        Phase(3, True, 1, 1, 0, 3, 0, 5), Phase(4, False, 1, 1, 0, 3),
        Phase(5, True, 1, 1, 0, 5, 3, 5), Phase(6, False, 1, 1, 0, 3),
    ]  # fmt: skip
    assert [phase.complete for phase in phases if phase.train] == [False, True, False, True]


def test_a_test_at_the_end_of_an_epoch_cuts_nothing() -> None:
    phases = plan_phases(Length(3), 4, 1, by_iteration=ByIteration(8))
    assert _kinds(phases) == "TTeTe"
    assert all(phase.complete for phase in phases)


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
                    group_of(step, phase.steps, accumulate, sizes),
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
    length = Length(0, iterations, min(parts, steps))
    plain = plan_phases(length, steps)
    phases = plan_phases(length, steps, 2, by_iteration=ByIteration(every, accumulate))
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
