"""The page of a run: what it shows, that nothing in it can do harm, and that it stays small."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from sslengine.errors import readable
from sslengine.report.content import Comparison, Content
from sslengine.report.page import render, render_comparison
from sslengine.report.scale import smooth_series
from tests.report import contents

RUNS = (contents.healthy, contents.failed, contents.collapsed, contents.unlabelled)


class Page(HTMLParser):
    """What a browser finds in a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []  # with the tag around it
        self._open: list[str] = []
        self.unlabelled: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag not in ("meta", "link", "input", "img", "wbr", "br", "path", "circle", "rect"):
            self._open.append(tag)
        named = "label" in self._open or "aria-label" in found
        if tag in ("input", "select", "canvas") and not named:
            self.unlabelled.append(f"{tag} {found}")
        if tag == "svg" and "aria-label" not in found and "aria-hidden" not in found:
            self.unlabelled.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.text.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [found for name, found in self.tags if name == tag]

    @property
    def seen(self) -> str:
        return " ".join(
            "".join(t for tag, t in self.text if tag not in ("script", "style")).split()
        )

    @property
    def data(self) -> Any:
        return read_data(self.html)


def read_data(html: str) -> Any:
    (text,) = re.findall(r'id="run-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


def open_page(content: Content | Comparison) -> Page:
    return Page(render(content) if isinstance(content, Content) else render_comparison(content))


def expected(content: Any) -> Any:
    """Give the content as JSON has it; pictures and what is not finite are null there."""
    if isinstance(content, dict):
        return {key: expected(each) for key, each in content.items()}
    if isinstance(content, (list, tuple)):
        return [expected(each) for each in content]
    if isinstance(content, str):
        return None if content.startswith("data:") else content
    return None if isinstance(content, float) and not math.isfinite(content) else content


def test_the_sections_are_in_order_and_the_contents_name_them() -> None:
    page = open_page(contents.healthy())
    order = [
        "verdict", "map", "neighbours", "curves", "health", "views", "scores", "data", "cost",
        "use",
    ]  # fmt: skip
    assert [each["href"] for each in page.all("a")] == ["#verdict", *(f"#{each}" for each in order)]
    assert [each["id"] for each in page.all("section")] == order[1:]


def test_an_empty_part_has_no_section_and_no_entry() -> None:
    page = open_page(contents.failed())
    assert [each["id"] for each in page.all("section")] == ["map", "curves"]
    assert [each["href"] for each in page.all("a")][1:] == ["#verdict", "#map", "#curves"]


def test_a_missing_map_is_the_command_that_adds_it() -> None:
    page = open_page(contents.failed())
    assert not page.all("canvas")
    assert ("code", "sslengine report runs/f") in page.text


def test_a_page_without_labels_has_a_map_without_classes() -> None:
    page = open_page(contents.unlabelled())
    assert [each["value"] for each in page.all("option")] == ["cluster", "distance"]
    assert "another class" not in page.seen


def test_a_score_has_its_interval_and_its_paired_difference() -> None:
    page = open_page(contents.healthy())
    assert "79.6 [75.8, 82.9]" in page.seen
    assert "+12.4 [8.1, 16.7]" in page.seen
    # Bold: the difference is larger than its interval.
    bold = re.findall(r'class="sure">(.*?)<', page.html)
    assert set(bold) == {"+12.4"}


def test_each_judgement_is_shown_the_newest_is_open() -> None:
    html = render(contents.healthy())
    newest, older = html.index("<bdi>birds/val</bdi><span>"), html.index("<bdi>birds/hard</bdi>")
    assert newest < html.index("<details>", newest) < older


def test_a_finding_of_collapse_is_marked() -> None:
    page = open_page(contents.collapsed())
    assert "✗ one-hot since epoch 2" in page.seen
    assert "state bad" in [each.get("class") for each in page.all("span")]


def test_a_curve_ends_where_its_loss_is_not_finite() -> None:
    page = open_page(contents.failed())
    assert "Not finite in epoch 0.4." in page.seen
    assert page.data["curves"][0]["values"] == [5.4, 5.5, 5.5, None]


@pytest.mark.parametrize("make", [*RUNS, contents.comparison])
def test_the_json_is_the_content(make: Callable[[], Any]) -> None:
    content = make()
    assert open_page(content).data == expected(asdict(content))


@pytest.mark.parametrize("make", [*RUNS, contents.comparison])
def test_hostile_names_are_shown_and_do_nothing(make: Callable[[], Any]) -> None:
    clean, page = open_page(make()), open_page(contents.poison(make()))
    assert [tag for tag, _ in page.tags if tag != "wbr"] == [
        tag for tag, _ in clean.tags if tag != "wbr"
    ]
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert [each.get("type") for each in page.all("script")] == ["application/json", None]
    assert readable(contents.EVIL) in page.seen.replace("\u200b", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page.html)
    assert page.data == expected(asdict(contents.poison(make())))


def test_a_browser_runs_the_own_script_alone() -> None:
    page = open_page(contents.healthy())
    (policy,) = [each["content"] for each in page.all("meta") if "http-equiv" in each]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert re.search(r"script-src 'sha256-[\w+/]+=*';", policy)


def test_a_picture_is_no_address() -> None:
    content = contents.healthy()
    view = replace(content.views[0], original="https://example.org/a.png")
    with pytest.raises(ValueError, match="not a picture"):
        render(replace(content, views=[view]))


@pytest.mark.parametrize("make", [*RUNS, contents.comparison])
def test_a_page_asks_no_address(make: Callable[[], Any]) -> None:
    page = open_page(make())
    links = [
        found[name] for _, found in page.tags for name in ("src", "href", "srcset") if name in found
    ]
    assert [each for each in links if not each.startswith(("#", "data:"))] == []
    assert not re.search(r"https?://|@import|url\((?!data:)", page.html)


@pytest.mark.parametrize("make", [*RUNS, contents.comparison])
def test_headings_are_in_order_and_controls_have_names(make: Callable[[], Any]) -> None:
    page = open_page(make())
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.unlabelled == []
    assert all(each.get("alt") for each in page.all("img"))


def test_the_same_content_gives_the_same_bytes() -> None:
    code = (
        "import hashlib; from tests.report.contents import healthy, comparison;"
        "from sslengine.report.page import render, render_comparison;"
        "print(hashlib.sha256((render(healthy()) + render_comparison(comparison())).encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_two_thousand_thumbnails_are_under_five_megabytes() -> None:
    thumbs, mapped = contents.image_map(2000, classes=100)
    # The largest sprite that is written.
    sprite = "data:image/webp;base64," + "A" * 2_000_000
    content = replace(contents.healthy(), thumbs=replace(thumbs, sprite=sprite), map=mapped)
    html = render(content)
    assert len(html.encode()) < 5e6
    assert html.count(sprite) == 1


def test_ten_thousand_epochs_and_200_metrics_stay_small_and_readable() -> None:
    content = contents.long()
    html = render(content)
    assert len(html.encode()) < 5e6
    # Nine are open, the others folded.
    drawn = [found.start() for found in re.finditer("data-curve=", html)]
    assert len(drawn) == 200
    assert drawn[8] < html.index("<details>") < drawn[9]
    for whole, shown in zip(content.curves, read_data(html)["curves"], strict=True):
        assert len(shown["values"]) <= 410
        assert {53.0, -53.0} <= set(shown["values"])
        assert shown["epochs"][-1] == whole.epochs[-1]
    # One value of 53 does not hide the rest, and is named.
    assert "Highest: 53, in epoch 5,000." in html


@pytest.mark.parametrize("runs", [2, 20])
def test_a_comparison_has_a_row_a_run_and_marks_what_is_sure(runs: int) -> None:
    page = open_page(contents.comparison(runs))
    assert len([each for each in page.all("tr") if "data-run" in each]) == runs
    assert "+5.0 [1.2, 8.8]" in page.seen
    assert set(re.findall(r'class="sure">(.*?)<', page.html)) == {"+5.0"}
    assert len(page.html.encode()) < 1.5e6
    # Colour and dashes together tell the lines of all runs.
    assert len(set(re.findall(r'class="l run (r\d d\d) ', page.html))) == runs


def test_scores_are_drawn_against_a_swept_number() -> None:
    found = contents.comparison()
    assert "kNN, k = 20 against OPTIMIZER.lr" in open_page(found).seen
    assert " against " not in open_page(replace(found, swept="")).seen


def test_medians_are_of_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    smoothed: list[int] = []

    def spy(epochs: Any, values: Any, *more: Any) -> Any:
        smoothed.append(len(values))
        return smooth_series(epochs, values, *more)

    monkeypatch.setattr("sslengine.report.plots.smooth_series", spy)
    render(contents.long(epochs=2000, metrics=1))
    assert smoothed == [2000]
