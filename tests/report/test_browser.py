"""Pages as a browser shows them: on a telephone, on a screen, in the dark, by keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sslengine.report.content import Comparison
from sslengine.report.page import render, render_comparison
from tests.report import contents
from tests.report.browser import Browser

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    found = Browser(CHROMIUM, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def write_page(content: Any) -> Path:
        file = tmp_path / "page.html"
        html = render_comparison(content) if isinstance(content, Comparison) else render(content)
        file.write_text(html, encoding="utf-8")
        return file

    return write_page


def many_runs() -> Comparison:
    return contents.comparison(20)


def hostile() -> Any:
    return contents.poison(contents.healthy())


def large() -> Any:
    return contents.long(2000, 40)


PAGES = (
    contents.healthy, contents.failed, contents.collapsed, contents.unlabelled, hostile, large,
    contents.comparison, many_runs,
)  # fmt: skip


@pytest.mark.parametrize("make", PAGES)
def test_a_page_opens_without_a_complaint_and_fits_its_window(
    make: Callable[[], Any], browser: Browser, write: Callable[[Any], Path]
) -> None:
    file = write(make())
    for width in (400, 1400):
        for dark in (False, True):
            browser.open(file, width, dark)
            assert browser.complaints() == []
            # The page itself does not scroll sideways; wide tables do, in their frames.
            wide = browser.run("document.documentElement.scrollWidth")
            assert wide <= width, browser.run(
                "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right"
                " > innerWidth + 1).slice(0, 5).map(e => e.outerHTML.slice(0, 120))"
            )
            paper = browser.run("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(20, 22, 25)" if dark else "rgb(255, 255, 255)")


def test_the_tab_key_reaches_each_control(browser: Browser, write: Callable[[Any], Path]) -> None:
    browser.open(write(contents.healthy()), 1400)
    # A group of radio buttons is one stop.
    wanted = browser.run(
        """(() => { window.reached = new Set();
        addEventListener('focusin', e => reached.add(e.target.name || e.target));
        return new Set([...document.querySelectorAll('button, input, select, canvas, a, summary')]
            .filter(e => e.checkVisibility()).map(e => e.name || e)).size })()"""
    )
    stops = "a, button, input, select, canvas, summary"
    for _ in range(120):
        browser.press("Tab", 9)
    assert (
        browser.run(f"[...reached].filter(e => !e.matches || e.matches('{stops}')).length")
        == wanted
    )


def test_keys_walk_over_the_map_and_release(browser: Browser, write: Callable[[Any], Path]) -> None:
    browser.open(write(contents.healthy()), 1400)
    browser.run("document.querySelector('canvas').focus()")
    browser.press("ArrowRight", 39)
    first = browser.run("document.querySelector('#said').textContent")
    browser.press("ArrowRight", 39)
    assert first.startswith("class ")
    assert browser.run("document.querySelector('#said').textContent") != first
    assert browser.run("document.querySelectorAll('#card ol button').length") == 20
    browser.press("Escape", 27)
    assert browser.run("document.querySelector('#card').hidden")
    assert browser.complaints() == []


def test_a_file_is_found_by_its_name(browser: Browser, write: Callable[[Any], Path]) -> None:
    browser.open(write(contents.healthy()), 1400)
    browser.run(
        "(() => { const find = document.querySelector('#find'); find.value = '00017';"
        "find.dispatchEvent(new Event('input')) })()"
    )
    assert "image_00017.png" in browser.run("document.querySelector('#card').textContent")
    assert browser.run("document.querySelector('#found').textContent").startswith("1 of 1")


def test_switches_change_colours_networks_and_curves(
    browser: Browser, write: Callable[[Any], Path]
) -> None:
    browser.open(write(contents.healthy()), 1400)
    picture = "document.querySelector('canvas').toDataURL()"
    before = browser.run(picture)
    browser.run(
        "(() => { const mode = document.querySelector('#colour'); mode.value = 'distance';"
        "mode.dispatchEvent(new Event('change')) })()"
    )
    assert browser.run(picture) != before
    browser.run("document.querySelector('input[name=network]').click()")
    shown = "[...document.querySelectorAll('.minis figure')].filter(e => e.checkVisibility()).map(e => e.dataset.network)"
    assert browser.run(shown) == ["trained"]
    medians = "getComputedStyle(document.querySelector('.median')).display"
    assert browser.run(medians) != "none"
    browser.run("document.querySelector('#smooth').click()")
    assert browser.run(medians) == "none"
    browser.run("document.querySelector('[value=dark]').click()")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 25)"
    assert browser.complaints() == []


def test_a_heading_sorts_the_runs(browser: Browser, write: Callable[[Any], Path]) -> None:
    browser.open(write(contents.comparison(4)), 1400)
    times = "[...document.querySelectorAll('.runs tbody tr')].map(row => +row.dataset.run)"
    assert browser.run(times) == [0, 1, 2, 3]
    browser.run(
        "[...document.querySelectorAll('.runs th button')].find(b => b.textContent === 'time').click()"
    )
    assert browser.run(times) == [3, 2, 1, 0]
