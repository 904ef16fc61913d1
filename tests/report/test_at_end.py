"""The end of a run leaves its page: of a complete run, of one that failed, and of a judgement."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sslengine.command.front import main
from sslengine.monitor.run_facts import read_facts
from sslengine.monitor.verdict import judge_run
from tests.command.photos import write_photos
from tests.monitor.test_verdict import train

pytestmark = pytest.mark.usefixtures("with_pages")


def content_of(run: Path) -> Any:
    """What the page says, as a program reads it."""
    page = (run / "report.html").read_text("utf-8")
    return json.loads(re.findall(r'id="run-data">(.*?)</script>', page, re.DOTALL)[0])


def test_a_complete_run_and_its_judgement(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, photos = tmp_path / "run", write_photos(tmp_path / "photos", 8)
    assert train(run) == 0
    told = " ".join(capfd.readouterr().out.split())
    found = content_of(run)
    assert found["verdict"]["rule"] == "not judged"
    assert found["verdict"]["sentence"] in told
    assert told.endswith(f"page {run}/report.html its map sslengine report {run} --map")
    assert len(found["views"]) == 6
    assert list(found["spectra"]) == ["start", "middle", "end"]
    assert found["spectra"]["start"] != found["spectra"]["end"]
    assert found["map"] is None

    assert main(["judge", str(run), f"--train={photos}", f"--val={photos}"]) == 0
    found = content_of(run)
    assert found["verdict"]["sentence"] == judge_run(read_facts(run)).sentence
    assert len(found["judgements"]) == 1
    assert found["judgements"][0]["confusion"]


def test_a_run_that_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(run, OPTIMIZER__param_schedulers__lr="{name: constant, value: 1e30}") == 1
    assert content_of(run)["verdict"]["rule"] == "failed"
    told = capfd.readouterr()
    assert (told.out + told.err).count("is not finite: loss") == 1
    assert "--map" not in told.out


@pytest.mark.slow
def test_what_cannot_be_judged_has_a_page_without_a_map(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(run, OPTIMIZER__param_schedulers__lr="{name: constant, value: 1e30}") == 1
    assert main(["report", str(run), "--map"]) == 0
    assert "map: not made" in capfd.readouterr().out
    assert content_of(run)["judgements"] == []


def test_it_is_left_out_by_a_key(tmp_path: Path) -> None:
    assert train(tmp_path / "run", CHECKPOINT__REPORT_AT_END=False) == 0
    assert not (tmp_path / "run" / "report.html").exists()
