"""What a user gets wrong, and what the command says: what, where, what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.launch.cli import main

WRONG_CONFIG, FAILED = 2, 1


@pytest.mark.parametrize(
    ("overrides", "status", "said"),
    [
        ("config.OPTIMIZER.num_epoch=3", WRONG_CONFIG,
         ["config.OPTIMIZER.num_epoch: unknown key", "'num_epochs'", "command line"]),
        ("config.LOSS.simclr_info_nce_loss.temprature=1", WRONG_CONFIG,
         ["config.LOSS.simclr_info_nce_loss.temprature: unknown key", "'temperature'"]),
        ("config.TRAINER.TRAIN_STEP_NAME=standard_train_stp", WRONG_CONFIG,
         ["config.TRAINER.TRAIN_STEP_NAME", "'standard_train_step'", "config.PLUGINS"]),
        ("config.LOSS.name=simclr_info_nse_loss", WRONG_CONFIG,
         ["config.LOSS.name", "'simclr_info_nce_loss'"]),
        ("config.OPTIMIZER.num_epochs=many", WRONG_CONFIG,
         ["config.OPTIMIZER.num_epochs: expected int, got 'many'", "command line"]),
        ("config.MODEL.AMP_PARAMS.USE_AMP=true config.MODEL.AMP_PARAMS.AMP_TYPE=pytorch",
         WRONG_CONFIG, ["config.MODEL.AMP_PARAMS", "fp16 requires a CUDA GPU"]),
        ("config.DATA.TRAIN.DATA_LIMIT=10", FAILED,
         ["config.DATA.TRAIN", "10 samples, fewer than the global batch of 128", "DROP_LAST=false"]),
        ("config.DATA.TRAIN.DATA_SOURCES=[disk_folder] config.DATA.TRAIN.DATA_PATHS=[{empty}]",
         FAILED, ["config.DATA.TRAIN.DATA_PATHS.0: no image in {empty}", ".jpg"]),
        ("config.DATA.TRAIN.DATA_SOURCES=[disk_folder] config.DATA.TRAIN.DATA_PATHS=[{empty}/no]",
         WRONG_CONFIG, ["config.DATA.TRAIN.DATA_PATHS.0", "{empty}/no"]),
        ("config.MODEL.WEIGHTS_INIT.PARAMS_FILE={empty}/no.torch", WRONG_CONFIG,
         ["config.MODEL.WEIGHTS_INIT.PARAMS_FILE: there is no file", "{empty}/no.torch"]),
        ("+config/benchmark/frozen=shapes", FAILED, ["no trained weights at {run}", "Train first"]),
        ("config=quickstart/simcl", WRONG_CONFIG, ["simcl", "quickstart/simclr"]),
    ],
    ids=lambda value: value.split("=")[0].rpartition(".")[2] if isinstance(value, str) else None,
)  # fmt: skip
def test_the_command_says_what_and_where(
    overrides: str,
    status: int,
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty, run = tmp_path / "empty", tmp_path / "run"
    empty.mkdir()
    given = overrides.format(empty=empty).split()
    if not given[0].startswith("config="):
        given = ["config=quickstart/simclr", *given]
    assert main([*given, f"config.CHECKPOINT.DIR={run}"]) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Traceback" not in error
    for part in said:
        assert part.format(empty=empty, run=run) in error
    assert not list(run.rglob("*.torch"))
