import pytest

from sslengine.checkpoint.options import CheckpointOptions


def test_the_defaults_are_right() -> None:
    assert list(CheckpointOptions().check()) == []


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"CHECKPOINT_FREQUENCY": 0}, "CHECKPOINT_FREQUENCY"),
        ({"CHECKPOINT_ITER_FREQUENCY": 0}, "CHECKPOINT_ITER_FREQUENCY"),
        ({"LATEST_CHECKPOINT_RESUME_FILE_NUM": 0}, "LATEST_CHECKPOINT_RESUME_FILE_NUM"),
    ],
)
def test_what_cannot_be(changes: dict[str, object], key: str) -> None:
    assert [problem.split(":")[0] for problem in CheckpointOptions(**changes).check()] == [key]
