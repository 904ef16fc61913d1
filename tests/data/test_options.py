from __future__ import annotations

import subprocess
import sys

import pytest

from sslengine.config.sections import section_problems
from sslengine.data.options import (
    DataOptions,
    PowerLawSampler,
    SplitOptions,
    StratifiedSampler,
)


def problems(**keys: object) -> list[str]:
    options = SplitOptions(**keys)  # type: ignore[arg-type]
    return [*section_problems(options), *options.check_chosen()]


def test_defaults_are_those_of_vissl() -> None:
    split = SplitOptions()
    assert problems() == []
    assert (split.BATCHSIZE_PER_REPLICA, split.DEFAULT_GRAY_IMG_SIZE) == (256, 224)
    assert (split.LABEL_TYPE, split.COLLATE_FUNCTION) == ("standard", "default_collate")
    assert (split.DATA_LIMIT, split.DROP_LAST) == (-1, False)
    assert (DataOptions().NUM_DATALOADER_WORKERS, DataOptions().DDP_BUCKET_CAP_MB) == (4, 25)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"LABEL_TYPE": "standart"}, "LABEL_TYPE"),
        ({"BATCHSIZE_PER_REPLICA": 0}, "BATCHSIZE_PER_REPLICA"),
        ({"DEFAULT_GRAY_IMG_SIZE": 0}, "DEFAULT_GRAY_IMG_SIZE"),
        ({"DATA_LIMIT": 0}, "DATA_LIMIT"),
        ({"IMAGE_PAGE": -1}, "IMAGE_PAGE"),
        ({"IMAGE_PAGE": "all"}, "IMAGE_PAGE"),
        ({"READ_RETRIES": -1}, "READ_RETRIES"),
        ({"READ_RETRY_WAIT": -0.5}, "READ_RETRY_WAIT"),
        ({"MAX_INVALID_SHARE": 50.0}, "MAX_INVALID_SHARE"),
        ({"MAX_IMAGE_PIXELS": 0}, "MAX_IMAGE_PIXELS"),
        ({"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": ["/a", "/b"]}, "DATA_PATHS"),
        ({"DATA_SOURCES": ["synthetic"], "DATA_PATHS": ["/a"]}, "DATA_PATHS.0"),
        ({"DATA_SOURCES": ["synthetic"], "LABEL_SOURCES": ["disk_folder"]}, "LABEL_SOURCES.0"),
        (
            {"STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=3)},
            "STRATIFIED_SAMPLER.CLASSES_PER_BATCH",
        ),
        (
            {"POWER_LAW_SAMPLER": PowerLawSampler(True), "USE_DEBUGGING_SAMPLER": True},
            "STRATIFIED_SAMPLER, POWER_LAW_SAMPLER, USE_DEBUGGING_SAMPLER",
        ),
    ],
)
def test_what_does_not_fit_is_told(keys: dict[str, object], key: str) -> None:
    (problem,) = problems(**keys)
    assert problem.partition(":")[0] == key


def test_reading_options_imports_nothing_heavy() -> None:
    code = "import sys, sslengine.data.options; print({'torch', 'numpy', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
