"""The command for a machine with a GPU, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import gpu_report

RESULTS = """<testsuites><testsuite>
<testcase name="one"/>
<testcase name="two"><failure message="not equal&#10;more">text</failure></testcase>
<testcase name="three"><skipped/></testcase>
</testsuite></testsuites>"""


def test_tests_are_counted_and_failures_named(tmp_path: Path) -> None:
    (tmp_path / "results.xml").write_text(RESULTS)
    counted = gpu_report._counted(tmp_path / "results.xml")
    assert counted == {"passed": 1, "failed": 1, "skipped": 1, "failures": {"two": "not equal"}}
    report = gpu_report.Report(gpu_report.machine("cpu"), counted | {"end": ""})
    report.write(tmp_path / "docs")
    (page,) = (tmp_path / "docs").glob("*.md")
    assert "1 passed, 1 failed, 1 skipped" in page.read_text()
    assert "- `two`: not equal" in page.read_text()


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="sees no CUDA device"):
        gpu_report.main([])


@pytest.mark.slow
def test_the_whole_command_on_a_cpu(tmp_path: Path) -> None:
    gpu_report.main(["--device", "cpu", "--tiny", "--out", str(tmp_path)])
    (data,) = tmp_path.glob("*.json")
    found = json.loads(data.read_text())
    assert (found["tests"]["passed"], found["tests"]["failed"]) == (1, 0)
    assert {row["name"] for row in found["bench"]["simclr"]} >= {"sslengine", "by hand"}
