import pytest

from sslengine.launch.options import SlurmOptions


def test_the_defaults_are_fine_and_hours_and_minutes_add_up() -> None:
    options = SlurmOptions(USE_SLURM=True, TIME_HOURS=2, TIME_MINUTES=5)
    assert list(options.check()) == []
    assert options.minutes == 125


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("NUM_CPU_PER_PROC", 0, "NUM_CPU_PER_PROC: expected 1 or more, got 0"),
        ("MEM_GB", -1, "MEM_GB: expected 0 or more"),
        ("PORT_ID", 80, "PORT_ID: expected 1024 to 65000, got 80"),
        ("TIME_HOURS", 0, "TIME_HOURS, TIME_MINUTES: 0 minutes are no longer than SIGNAL_SECONDS=120"),
        ("MAX_LIVES_WITHOUT_PROGRESS", 0, "MAX_LIVES_WITHOUT_PROGRESS: expected 1"),
    ],
)  # fmt: skip
def test_what_cannot_be(key: str, value: int, problem: str) -> None:
    (text,) = SlurmOptions(**{key: value}).check()
    assert text.startswith(problem)
