"""Write pages: of a run, and of several."""

from __future__ import annotations

from pathlib import Path

from sslengine.atomic import write_whole
from sslengine.monitor.run_facts import read_facts
from sslengine.report.content import Comparison
from sslengine.report.gather import gather
from sslengine.report.page import render, render_comparison

PAGE = "report.html"


def write_page(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a run from what its folder holds; return its file."""
    place = out or folder / PAGE
    write_whole(place, render(gather(read_facts(folder))).encode())
    return place


def write_comparison(found: Comparison, out: Path) -> Path:
    write_whole(out, render_comparison(found).encode())
    return out
