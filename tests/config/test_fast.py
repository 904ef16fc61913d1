from __future__ import annotations

import pytest
import yaml

from sslengine import data  # noqa: F401 - declares the back-ends
from sslengine.config import facts
from sslengine.config.stored import as_stored, changes
from tests.config.recipes import resolved


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(facts, "find_spec", lambda name: None if name in names else object())
    return names


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {**facts.AUGMENT_BACKENDS._declared, "numba": "somewhere"}
    monkeypatch.setattr(facts.AUGMENT_BACKENDS, "_declared", declared)


def test_the_best_needs_all_of_its_packages(missing: list[str]) -> None:
    assert facts.best_backend() == "numba"
    missing.append("simplejpeg")
    assert facts.best_backend() == "pil"


def test_what_there_is_has_nothing_against_it(missing: list[str]) -> None:
    assert [facts.why_not(name) for name in ("auto", "pil", "numba", "mine:Mine")] == [""] * 4
    missing.append("numba")
    assert facts.why_not("pil") == ""


def test_what_is_missing_is_told_with_the_command(missing: list[str]) -> None:
    missing += ["numba", "simplejpeg"]
    assert facts.why_not("numba") == (
        "numba requires numba and simplejpeg: pip install 'sslengine[fast]'. Or choose pil, which "
        "requires no other package."
    )


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    told = facts.why_not("pill")
    assert told.startswith("expected one of auto, ")
    assert "got 'pill'. Did you mean 'pil'?" in told


@pytest.mark.parametrize("name", facts.REMOVED)
def test_a_back_end_that_was_removed_is_replaced_with_a_warning(name: str) -> None:
    run = resolved(DATA__AUGMENT_BACKEND=name)
    (warning,) = run.warnings
    assert warning.startswith(f"config.DATA.AUGMENT_BACKEND: {name} ")
    assert run.config.DATA.AUGMENT_BACKEND == "auto"


def test_a_run_that_began_with_it_resumes() -> None:
    run = resolved(DATA__AUGMENT_BACKEND="device")
    now = as_stored(run.config, run.texts)
    now["DATA"]["AUGMENT_BACKEND"] = "device"
    before = yaml.safe_dump({"config": now})
    now["DATA"]["AUGMENT_BACKEND"] = "auto"
    assert changes(before, now, run.origins) == []
