import pytest

from sslengine import screen
from sslengine.monitor.text import clock, phase_line, step_line
from sslengine.monitor.writers import Record


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00:00"), (61.4, "0:01:01"), (86400 + 59.6, "24:01:00")]
)
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_pace_lets_the_first_through_and_then_one_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([100.0, 104.9, 105.0, 106.0])
    monkeypatch.setattr(screen.time, "monotonic", lambda: next(times))
    pace = screen.Pace(seconds=5.0)
    assert [pace.is_due() for _ in range(4)] == [True, False, True, False]


def test_a_step_says_where_what_and_how_long() -> None:
    record = Record(
        "step", 12, 0, "train", {"loss": 4.56789, "lr": 0.03, "images_per_s": 1234.56},
        {"step": 12, "steps": 78, "epochs": 10, "eta_seconds": 75},
    )  # fmt: skip
    assert step_line(record) == (
        "train 1/10  step 12/78  loss 4.568  lr 0.03  images_per_s 1235  eta 0:01:15"
    )


def test_a_phase_names_each_figure_and_the_only_output_by_no_number() -> None:
    values = {
        "loss": 1.5,
        "accuracy": {"top_1": {"0": 87.654}, "top_5": {"res4": 90.0, "res5": 95.0}},
    }
    record = Record("phase", 78, 1, "test", values, {"epochs": 10})
    assert phase_line(record) == (
        "test 2/10  loss 1.5  accuracy.top_1 87.65  accuracy.top_5.res4 90  accuracy.top_5.res5 95"
    )
