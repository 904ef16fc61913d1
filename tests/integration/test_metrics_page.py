"""docs/metrics.md followed to the letter, with a smaller config."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from sslengine.launch.cli import main
from sslengine.monitor.history import read
from sslengine.monitor.store import current
from tests.integration.command import write_config

DOC = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def _blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)


def _arguments() -> list[str]:
    """Of the command, as a shell would give them."""
    match = re.search(
        r"    sslengine config=quickstart/simclr (.*?)\n\n", DOC.read_text(), re.DOTALL
    )
    assert match is not None
    return match.group(1).replace("\\\n", " ").replace('"', "").split()


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, reading = _blocks()
    write_config(tmp_path)
    (tmp_path / "my_metrics.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["config=tiny", *_arguments()]) == 0
    run = tmp_path / "runs" / "tiny"
    names: dict[str, object] = {}
    exec(reading.replace("quickstart/simclr", "tiny"), names)
    steps, epochs, by_name = names["steps"], names["epochs"], names["by_name"]
    assert steps == read(run)
    assert [step["iteration"] for step in steps] == [1, 2, 4, 5, 6, 8]
    assert all(step["embedding/norm"] > 0 for step in steps)
    assert by_name["loss"] == [step["loss"] for step in steps]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]
    # Put in the steps after 0 and 4, and written with the first record after that.
    images = sorted(path.name for path in (run / "images" / "first image").iterdir())
    assert images == ["1.png", "5.png"]
    best = min(by_name["loss"])
    assert (run / "lowest.txt").read_text().startswith(f"{best} at step ")
    header = (run / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith("kind,split,iteration,epoch,time,loss,lr,")
    # The module of the page, outside of a run.
    gate = sys.modules["my_metrics"].Gate()
    assert gate(torch.ones(2)).tolist() == [0.5, 0.5]
    assert not current().active


def test_the_defaults_that_the_page_tells() -> None:
    from sslengine.hooks.options import DEFAULT_WRITERS
    from sslengine.registry import WRITERS

    text = DOC.read_text()
    assert f"`[{', '.join(DEFAULT_WRITERS)}]` by default" in text
    table = text.partition("## Writers")[2].partition("All are on rank 0")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == {name for name in WRITERS.names() if "_" not in name}
