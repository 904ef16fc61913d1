"""Fixtures for all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from sslengine import progress
from tests.ranks import RankPool

# Tests are many small computations, often in several processes: threads only get in the way,
# in the commands that tests run as well.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# On a processor with AVX2 alone, kernels of oneDNN in torch 2.14.1 corrupt the heap: processes abort
# in the backward pass of small convolutions.
if torch.backends.cpu.get_cpu_capability() == "AVX2":
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")

# What sslengine keeps for a next start goes into a folder of this test run.
os.environ["SSLENGINE_CACHE"] = os.path.join(
    tempfile.gettempdir(), f"sslengine-tests-{os.getuid()}"
)

# The key that signs runs is one of this test run, also in commands that get no HOME.
os.environ["XDG_CONFIG_HOME"] = os.path.join(os.environ["SSLENGINE_CACHE"], "config")
os.makedirs(os.environ["XDG_CONFIG_HOME"], exist_ok=True)

# The same examples at each run: what is green stays green. Others, and many more of them, are
# tried by: pytest --hypothesis-profile=explore
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes a minute comes first: at the end the other processes would wait for it.

    The processes of a test run have to agree on the names of the tests.
    """
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    changing = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if changing:
        raise pytest.UsageError(f"give it an id that is no address: {changing[0]}")


@pytest.fixture
def with_pages() -> None:
    """Runs of this test write their pages at their end."""


@pytest.fixture(autouse=True)
def without_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process write no page at their end, which takes a second: few tests look at it.

    Those of commands in other processes do.
    """
    if "with_pages" not in request.fixturenames:
        monkeypatch.setattr("sslengine.launch.rank.reported", lambda run: nullcontext())


@pytest.fixture
def progress_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage is shown from its start, each line of it printed."""
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(progress.pace, "seconds", 0.0)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


@pytest.fixture
def pool(request: pytest.FixtureRequest) -> RankPool:
    """As many ranks as the test's parameter says, two or four: parametrize it with indirect."""
    found: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[request.param])
    return found


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained `run` and its `images`: copy what is to be changed."""
    from tests.predictor.runs import make_classifier  # imports the engine

    folder = tmp_path_factory.mktemp("classifier")
    make_classifier(folder, OPTIMIZER__num_epochs=1)
    return folder
