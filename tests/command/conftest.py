"""Images for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command.photos import write_photos


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen of two classes, for all tests: copy what is to be changed."""
    return write_photos(tmp_path_factory.mktemp("photos"))
