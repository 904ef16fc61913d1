"""Jobs on a real SLURM: submitted, told to end, ended from outside, and what they leave."""

from __future__ import annotations

import pytest

from tests.slurm.user import PATIENCE, User

pytestmark = [pytest.mark.timeout(3 * PATIENCE), pytest.mark.xdist_group("slurm")]

TWO_NODES = ("config.DISTRIBUTED.NUM_NODES=2", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=2")


def test_two_nodes_of_one_rank_each_train_to_the_end(user: User) -> None:
    done = user.command(
        "config.SLURM.USE_SLURM=true",
        "config.SLURM.WAIT=true",
        "config.CHECKPOINT.DIR=two",
        *TWO_NODES,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
