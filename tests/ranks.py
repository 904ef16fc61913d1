"""Several gloo ranks for tests, where a warning is an error: see sslengine/testing/ranks.py.

@pytest.fixture(scope="module")
def two_ranks():
    with RankPool(2) as pool:
        yield pool

def test_sum(two_ranks):
    assert two_ranks.run(my_function, 3) == [6, 6]     # one result per rank
"""

from __future__ import annotations

from sslengine.testing import ranks
from sslengine.testing.ranks import end_fork_server, free_port

__all__ = ["RankPool", "end_fork_server", "free_port"]


class RankPool(ranks.RankPool):
    imported = (
        "torch._dynamo",
        "torchvision",
        "pytest",
        "sslengine.data.augment.compiled",
        "sslengine.engines.train",
        "sslengine.hooks.default",
        "sslengine.launch.cli",
        "sslengine.methods.simclr",
        "sslengine.engine.build",
        "sslengine.engine.task",
    )
    strict = True
