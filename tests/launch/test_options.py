import pytest

from sslengine.config.sections import section_problems
from sslengine.launch.options import SlurmOptions


def test_the_defaults_are_fine_and_hours_and_minutes_add_up() -> None:
    options = SlurmOptions(USE_SLURM=True, TIME_HOURS=2, TIME_MINUTES=5)
    assert list(section_problems(options)) == []
    assert options.minutes == 125


@pytest.mark.parametrize(
    ("key", "value"),
    [("NUM_CPU_PER_PROC", 0), ("MEM_GB", -1), ("PORT_ID", 80), ("TIME_HOURS", 0),
     ("MAX_LIVES_WITHOUT_PROGRESS", 0)],
)  # fmt: skip
def test_what_cannot_be(key: str, value: int) -> None:
    (text,) = section_problems(SlurmOptions(**{key: value}))
    assert text.startswith(key)
