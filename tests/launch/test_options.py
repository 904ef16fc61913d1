import pytest

from sslengine.config.sections import section_problems
from sslengine.launch.options import SlurmOptions


def test_the_defaults_are_fine_and_hours_and_minutes_add_up() -> None:
    options = SlurmOptions(USE_SLURM=True, TIME_HOURS=2, TIME_MINUTES=5)
    assert list(section_problems(options)) == []
    assert options.minutes == 125


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("NUM_CPU_PER_PROC", 0, "NUM_CPU_PER_PROC"),
        ("MEM_GB", -1, "MEM_GB"),
        ("PORT_ID", 80, "PORT_ID"),
        ("TIME_HOURS", 0, "TIME_HOURS, TIME_MINUTES"),
        ("MAX_LIVES_WITHOUT_PROGRESS", 0, "MAX_LIVES_WITHOUT_PROGRESS"),
    ],
)
def test_what_cannot_be(key: str, value: int, told: str) -> None:
    (text,) = section_problems(SlurmOptions(**{key: value}))
    assert text.partition(":")[0] == told
