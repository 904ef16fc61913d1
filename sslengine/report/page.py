"""Write the page of a run, and the page that compares runs: one HTML file each."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from sslengine.errors import readable
from sslengine.monitor.run_facts import PIXELS, TRAINED, UNTRAINED, FeatureScore
from sslengine.report import plots
from sslengine.report.content import Comparison, Content, Curve, Judgement
from sslengine.report.parts import PICTURE, check_picture
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_number,
    format_points,
    name_metric,
)

_TEMPLATES = Path(__file__).parent / "templates"
_CLASSES = 20  # a confusion matrix of more cannot be read, nor a drawing of more than twice that


def render(content: Content) -> str:
    """Write the page of one run."""
    thinned = [plots.thin(each) for each in content.curves]
    health = [plots.thin(each) for each in content.health]
    span = plots.find_span([*thinned, *health])
    drawn = [plots.plot_curve(*each, span) for each in zip(content.curves, thinned)]
    content = replace(content, curves=thinned, health=health)
    shares = content.map.by_class.get(TRAINED, ()) if content.map else ()
    return _fill(
        "page.html.j2",
        content,
        content=content,
        sections=[each[1:] for each in _list_sections(content) if each[0]],
        plots=drawn,
        strips=[plots.plot_health(each, span) for each in health],
        spectra=plots.plot_spectra(content.spectra) if content.spectra else None,
        judgements=[_arrange_judgement(each) for each in content.judgements],
        # The classes whose neighbours are most alike first.
        order=sorted(range(len(shares)), key=lambda number: -shares[number]),
        thumbs=content.thumbs,
    )


def render_comparison(comparison: Comparison) -> str:
    """Write the page that compares runs."""
    thinned = [[plots.thin(curve) for curve in row.curves] for row in comparison.rows]
    rows = [replace(row, curves=each) for row, each in zip(comparison.rows, thinned)]
    return _fill(
        "compare.html.j2",
        replace(comparison, rows=rows),
        comparison=comparison,
        keys=list(dict.fromkeys(key for row in rows for key in row.differs)),
        metrics=list(dict.fromkeys(key for row in rows for key in row.metrics)),
        columns=list(_list_columns(comparison)),
        overlays=_overlay_curves(comparison),
        swept=[float(row.differs[comparison.swept]) for row in rows if comparison.swept],
        thumbs=None,
    )


def _fill(template: str, data: Content | Comparison, **parts: Any) -> str:
    names = ("style.css", "script.js", "map.js")
    style, script, of_map = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    thumbs = parts["thumbs"]
    script += of_map if thumbs and parts["content"].map else ""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "fit_axis": fit_axis,
        "shares": Axis(0.0, 100.0, 104.0, 352.0),
        "style_run": plots.style_run,
    }
    environment.filters |= {
        "number": format_number,
        "points": format_points,
        "kind": _name_kind,
        "metric": name_metric,
        "path": plots.draw_path,
        "file": _break_name,
        "picture": check_picture,
        "label": thumbs.labels.__getitem__ if thumbs else int,
    }
    html = environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        # The only script that a browser runs in the page.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=encode_data(data),
        **parts,
    )
    # Control characters, and those that turn the text around them, are escaped wherever they are.
    return "\n".join(readable(line, but="\t") for line in html.split("\n"))


def _name_kind(features: str) -> str:
    """Give the class in style.css of a kind of features."""
    known = {PIXELS: "pixels"} | {
        each: each for each in (TRAINED, UNTRAINED, "reference", "chance")
    }
    return known.get(features, "other")


def _break_name(name: str) -> Markup:
    """Let a file's name be broken at its signs rather than within a word."""
    parts = re.split(r"(?<=[_/-])|(?=\.)", name)
    return Markup("<wbr>").join(map(escape, parts))


def encode_data(data: Content | Comparison) -> Markup:
    """Write content as JSON that can stand within a script element.

    Pictures, and numbers that are not finite, are null.
    """
    finite = json.loads(json.dumps(asdict(data)), parse_constant=lambda name: None)
    text = htmlsafe_json_dumps(finite, separators=(",", ":"))
    # A quote within a text has a backslash before it.
    return Markup(re.sub(rf'(?<!\\)"{PICTURE.pattern}"', "null", text))


def _list_sections(content: Content) -> Iterator[tuple[Any, str, str, str]]:
    """Yield the sections in their order: what they show, name, title, hint."""
    drawn, health, judged = content.map, content.health, content.judgements
    yield True, "verdict", "Verdict", content.verdict.rule
    images = f"{len(drawn.clusters):,} images" if drawn else "not made yet"
    yield drawn or content.map_command, "map", "Map", images
    same = f"{drawn.same_class[TRAINED]:.0f} % same class" if drawn and drawn.same_class else ""
    yield drawn and drawn.queries, "neighbours", "Neighbours", same
    lasts = [f"{each.title} {plots.write_last(each)}" for each in content.curves[:1]]
    yield content.curves, "curves", "Curves", "".join(lasts)
    found = sum(bool(each.finding) for each in health)
    sign = f"{found} of {len(health)} with a finding" if found else "no sign of collapse"
    asked = health or content.findings or content.spectra
    yield asked, "health", "Health", sign if health else ""
    yield content.views, "views", "What it saw", f"{len(content.views)} images"
    own = [each for one in judged[:1] for each in one.scores if each.features == TRAINED]
    told = [f"{name_metric(each.metric)} {format_points(each.value)}" for each in own[:2]]
    yield judged, "scores", "Scores", ", ".join(told)
    for title, facts in (("Data", content.data), ("Cost", content.cost)):
        hint = "".join(f"{each.what}: {each.value}" for each in facts[:1])
        yield facts, title.lower(), title, hint
    use = (content.commands, content.differs, content.versions, content.starts, content.checkpoints)
    yield any(use), "use", "How to use it", "commands, versions, checkpoints"


def group_scores(scores: Sequence[FeatureScore]) -> dict[tuple[str, str], list[FeatureScore]]:
    """Group what is compared: a metric of a layer, with features that have no such layer."""
    own = [each for each in scores if each.features == TRAINED] or scores
    found: dict[tuple[str, str], list[FeatureScore]] = {
        (each.layer, each.metric): [] for each in own
    }
    for (layer, metric), group in found.items():
        for each in scores:
            has_layer = each.features in (TRAINED, UNTRAINED)
            if each.metric == metric and (each.layer == layer or not has_layer):
                group.append(each)
    return found


def _arrange_judgement(judgement: Judgement) -> dict[str, Any]:
    """Give its scores as rows of drawings, and of a table."""
    groups, chance = group_scores(judgement.scores), judgement.chance
    beside = [] if chance is None else [("chance", [FeatureScore("chance", "", "", chance)])]
    rows: dict[tuple[str, str], dict[str, FeatureScore]] = {}
    for each in judgement.scores:
        rows.setdefault((each.features, each.layer), {})[each.metric] = each
    ranked = sorted(judgement.classes, key=lambda row: -row.shares.get(TRAINED, 0.0))
    return {
        "judgement": judgement,
        "bars": [(*key, [(each.features, [each]) for each in group] + beside)
                 for key, group in groups.items()],
        "rows": rows,
        "has_layers": len({layer for layer, _ in groups}) > 1,
        "classes": [
            (row.name, [FeatureScore(kind, "", "", each) for kind, each in row.shares.items()])
            for row in ranked[-2 * _CLASSES :]
        ],
        "has_matrix": 0 < len(judgement.confusion) <= _CLASSES,
        "confused": _list_confused(judgement),
    }  # fmt: skip


def _list_confused(judgement: Judgement) -> list[tuple[int, str, str]]:
    """List the ten pairs of classes that are taken for each other most often, with their images."""
    table, names = judgement.confusion, [row.name for row in judgement.classes]
    pairs = (
        (table[one][other] + table[other][one], names[one], names[other])
        for one, other in combinations(range(len(table)), 2)
    )
    return sorted((pair for pair in pairs if pair[0]), key=lambda pair: -pair[0])[:10]


def _list_columns(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a column for each score: that of each run, or None, and those of the baselines."""
    scores = [each for row in comparison.rows for each in row.scores]
    groups = group_scores([*comparison.baselines, *scores])
    for (layer, metric), group in groups.items():
        ends = (end for each in group for end in (each.value, *(each.interval or ())))
        low, high = find_range(ends) or (0.0, 100.0)
        yield {
            "metric": metric,
            "layer": layer if len({each for each, _ in groups}) > 1 else "",
            "level": fit_axis(low, high, 8, 142),
            "upright": fit_axis(low, high, 190, 8),
            "baselines": [each for each in group if each.features != TRAINED],
            "scores": [next((each for each in row.scores if each in group), None)
                       for row in comparison.rows],
            "best": max(each.value for each in group if each.features == TRAINED),
        }  # fmt: skip


def _overlay_curves(comparison: Comparison) -> list[plots.Plot]:
    found: dict[str, list[tuple[int, Curve]]] = {}
    for run, row in enumerate(comparison.rows):
        for curve in row.curves:
            found.setdefault(curve.title, []).append((run, curve))
    span = plots.find_span([curve for row in comparison.rows for curve in row.curves])
    return [plots.plot_runs(pairs, span) for pairs in found.values()]
