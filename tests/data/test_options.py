from __future__ import annotations

import subprocess
import sys

import pytest

from sslengine.data.options import DataOptions, PowerLawSampler, SplitOptions, StratifiedSampler


def problems(**keys: object) -> list[str]:
    options = SplitOptions(**keys)  # type: ignore[arg-type]
    return [*options.check(), *options.check_chosen()]


def test_defaults_are_those_of_vissl() -> None:
    split = SplitOptions()
    assert problems() == []
    assert (split.BATCHSIZE_PER_REPLICA, split.DEFAULT_GRAY_IMG_SIZE) == (256, 224)
    assert (split.LABEL_TYPE, split.COLLATE_FUNCTION) == ("standard", "default_collate")
    assert (split.DATA_LIMIT, split.DROP_LAST) == (-1, False)
    assert (DataOptions().NUM_DATALOADER_WORKERS, DataOptions().DDP_BUCKET_CAP_MB) == (4, 25)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"LABEL_TYPE": "standart"}, "LABEL_TYPE: expected one of standard"),
        ({"BATCHSIZE_PER_REPLICA": 0}, "BATCHSIZE_PER_REPLICA: expected 1 or more, got 0"),
        ({"DEFAULT_GRAY_IMG_SIZE": 0}, "DEFAULT_GRAY_IMG_SIZE: expected 1 or more"),
        ({"DATA_LIMIT": 0}, "DATA_LIMIT: expected 1 or more, or -1 for all; got 0"),
        (
            {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": ["/a", "/b"]},
            "DATA_PATHS: expected one for each of the 1 DATA_SOURCES, got 2",
        ),
        (
            {"DATA_SOURCES": ["synthetic"], "DATA_PATHS": ["/a"]},
            "DATA_PATHS.0: the source 'synthetic' makes its images and reads no '/a'.",
        ),
        (
            {"DATA_SOURCES": ["synthetic"], "LABEL_SOURCES": ["disk_folder"]},
            "LABEL_SOURCES.0: 'disk_folder' does not go with the data source 'synthetic'",
        ),
        ({"READ_RETRIES": -1}, "READ_RETRIES: expected 0 or more, got -1"),
        ({"READ_RETRY_WAIT": -0.5}, "READ_RETRY_WAIT: expected 0 or more, got -0.5"),
        ({"MAX_INVALID_SHARE": 50.0}, "MAX_INVALID_SHARE: expected from 0 to 1, got 50.0"),
        ({"MAX_IMAGE_PIXELS": 0}, "MAX_IMAGE_PIXELS: expected 1 or more, got 0"),
        (
            {"STRATIFIED_SAMPLER": StratifiedSampler(True, CLASSES_PER_BATCH=3)},
            "STRATIFIED_SAMPLER.CLASSES_PER_BATCH: 3 classes cannot share the 256 of BATCHSIZE_PER",
        ),
        (
            {"STRATIFIED_SAMPLER": StratifiedSampler(True, STEP_PER_EPOCH=0)},
            "STRATIFIED_SAMPLER.STEP_PER_EPOCH: expected 1 or more",
        ),
        (
            {"POWER_LAW_SAMPLER": PowerLawSampler(True), "USE_DEBUGGING_SAMPLER": True},
            "STRATIFIED_SAMPLER, POWER_LAW_SAMPLER, USE_DEBUGGING_SAMPLER: set one of them",
        ),
    ],
)
def test_what_does_not_fit_is_told(keys: dict[str, object], message: str) -> None:
    (problem,) = problems(**keys)
    assert problem.startswith(message)


def test_what_fits() -> None:
    assert problems(DATA_SOURCES=["disk_folder", "synthetic"], DATA_PATHS=["/a", ""]) == []
    assert problems(DATA_SOURCES=["synthetic"], LABEL_SOURCES=["synthetic"]) == []
    assert problems(DATA_SOURCES=["disk_folder"], LABEL_SOURCES=["disk_filelist"]) == []


@pytest.mark.parametrize("key", ["NUM_DATALOADER_WORKERS", "PREFETCH_FACTOR"])
def test_loader_numbers(key: str) -> None:
    assert list(DataOptions().check()) == []
    (problem,) = DataOptions(**{key: -1}).check()
    assert problem.startswith(f"{key}: expected")


def test_reading_options_imports_nothing_heavy() -> None:
    code = "import sys, sslengine.data.options; print({'torch', 'numpy', 'PIL'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
