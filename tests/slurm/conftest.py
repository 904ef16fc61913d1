"""The cluster, and a user's folder in which commands are given."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command import write_config
from tests.slurm.cluster import Cluster, why_not
from tests.slurm.user import SLOW, User


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Cluster(Path(folder)) as running:
        yield running


@pytest.fixture(scope="session")
def user(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> User:
    folder = tmp_path_factory.mktemp("user")
    write_config(
        folder, LOG_FREQUENCY=1, OPTIMIZER__num_epochs=2, DATA__TRAIN__DATA_LIMIT=64,
        # A job runs from a copy of the code, for which kernels would be compiled.
        DATA__AUGMENT_BACKEND="pil", DATA__NUM_DATALOADER_WORKERS=1,
        CHECKPOINT__CHECKPOINT_ITER_FREQUENCY=4,
        PLUGINS=["slow_first_life"], HOOKS={"EXTRA": [{"name": "slow_first_life"}]},
        SLURM={"MEM_GB": 1, "NUM_CPU_PER_PROC": 1, "LOG_FOLDER": "jobs", "TIME_HOURS": 1},
    )  # fmt: skip
    (folder / "slow_first_life.py").write_text(SLOW)
    return User(folder, cluster)
