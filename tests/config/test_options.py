import subprocess
import sys
from typing import Any

import pytest

from sslengine.config.options import (
    DistributedOptions,
    MachineOptions,
    ReproducibilityOptions,
    RunOptions,
)
from sslengine.config.sections import section_problems

BY_ITERATION = {"TEST_EVERY_NUM_ITERATIONS": 100}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (RunOptions(), []),
        (MachineOptions(), []),
        (DistributedOptions(), []),
        (DistributedOptions(BROADCAST_BUFFERS="before_eval"), []),
        (DistributedOptions(BROADCAST_BUFFERS="forward"), ["BROADCAST_BUFFERS"]),
        (DistributedOptions(POWERSGD_RANK=0, POWERSGD_START=1), ["POWERSGD_RANK", "POWERSGD_START"]),
        (DistributedOptions(RENDEZVOUS_MINUTES=0), ["RENDEZVOUS_MINUTES"]),
        (MachineOptions(DEVICE="cup", PRECISION="fp8"), ["DEVICE", "PRECISION"]),
        (ReproducibilityOptions(True, CUDNN_BENCHMARK=True), ["CUDNN_BENCHMARK"]),
        (RunOptions(REFERENCE_WORLD_SIZE=-1, SEED_VALUE=-(2**32)), ["REFERENCE_WORLD_SIZE", "SEED_VALUE"]),
        (RunOptions(EXPECTED_RESULTS=[["loss", 1.0, 0.1]]), ["EXPECTED_RESULTS.0"]),
        (RunOptions(**BY_ITERATION), []),
        (RunOptions(**BY_ITERATION, TEST_EVERY_NUM_EPOCH=2), ["TEST_EVERY_NUM_ITERATIONS"]),
        (RunOptions(**BY_ITERATION, TEST_MODEL=False), ["TEST_EVERY_NUM_ITERATIONS"]),
        (RunOptions(TEST_EVERY_NUM_ITERATIONS=-1), ["TEST_EVERY_NUM_ITERATIONS"]),
    ],
)  # fmt: skip
def test_the_keys_that_are_wrong(options: Any, keys: list[str]) -> None:
    assert [each.partition(":")[0] for each in section_problems(options)] == keys


def test_the_whole_schema_is_there_without_torch() -> None:
    """`--help` and a typo in a key must not wait for torch."""
    code = (
        "import sys; from sslengine import catalog; from sslengine.config.sections import schema; "
        "schema(); print(sorted({'torch', 'torchvision', 'classy_vision', 'timm', 'sklearn'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
