import subprocess
import sys

import pytest

from sslengine.config.options import DistributedOptions, MachineOptions, RunOptions


def test_the_defaults_pass_their_own_check() -> None:
    for options in (RunOptions(), MachineOptions(), DistributedOptions()):
        assert list(options.check()) == []


@pytest.mark.parametrize("mode", [True, False, "disabled", "forward_pass", "before_eval"])
def test_modes_of_buffers(mode: object) -> None:
    assert list(DistributedOptions(BROADCAST_BUFFERS=mode).check()) == []


def test_a_wrong_mode_of_buffers() -> None:
    (problem,) = DistributedOptions(BROADCAST_BUFFERS="forward").check()
    assert "Did you mean 'forward_pass'" in problem


def test_the_whole_schema_is_there_without_torch() -> None:
    """`--help` and a typo in a key must not wait for torch."""
    code = (
        "import sys; from sslengine import catalog; from sslengine.config.sections import schema; "
        "schema(); print(sorted({'torch', 'torchvision', 'classy_vision', 'timm', 'sklearn'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_powersgd_has_a_rank() -> None:
    (problem,) = DistributedOptions(POWERSGD_RANK=0).check()
    assert problem == "POWERSGD_RANK: expected 1 or more, got 0."


def test_a_number_of_ranks_is_not_negative() -> None:
    (problem,) = RunOptions(REFERENCE_WORLD_SIZE=-1).check()
    assert problem == "REFERENCE_WORLD_SIZE: expected 0 or more, got -1."


def test_tests_come_by_iterations_or_by_epochs() -> None:
    assert list(RunOptions(TEST_EVERY_NUM_ITERATIONS=100).check()) == []
    (problem,) = RunOptions(TEST_EVERY_NUM_ITERATIONS=100, TEST_EVERY_NUM_EPOCH=2).check()
    assert problem.startswith(
        "TEST_EVERY_NUM_ITERATIONS: cannot be combined with TEST_EVERY_NUM_EPOCH"
    )
    (problem,) = RunOptions(TEST_EVERY_NUM_ITERATIONS=100, TEST_MODEL=False).check()
    assert "TEST_MODEL=true" in problem
    (problem,) = RunOptions(TEST_EVERY_NUM_ITERATIONS=-1).check()
    assert "got -1" in problem
