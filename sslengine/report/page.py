"""Draw the page of a run, and the page that compares runs: one HTML file each."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sslengine.errors import readable
from sslengine.monitor.run_facts import Score
from sslengine.report import curves, scores
from sslengine.report.content import (
    ClassRow,
    Comparison,
    Content,
    Curve,
    Health,
    Judgement,
)
from sslengine.report.parts import PICTURE, check_picture
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_number,
    format_points,
    keep_records,
    name_metric,
)
from sslengine.report.svg import name_kind

_TEMPLATES = Path(__file__).parent / "templates"
# So many curves are open, with so many points; the rest are folded, and have fewer.
_OPEN, _POINTS, _FEWER = 9, 400, 120
_CLASSES = 20  # a confusion matrix of more cannot be read, nor a drawing of more than twice that
Series = TypeVar("Series", Curve, Health)


def render(content: Content) -> str:
    """Write the page of one run."""
    span = _find_span([*content.curves, *content.health])
    thinned = [_thin(each, _count_points(number)) for number, each in enumerate(content.curves)]
    health = [_thin(each, 300) for each in content.health]
    return _fill(
        "page.html.j2",
        data=encode_data(replace(content, curves=thinned, health=health)),
        content=content,
        sections=list_sections(content),
        plots=_draw_curves(content, span),
        span=span,
        judgements=[_draw_judgement(each) for each in content.judgements],
        order=_order_classes(content),
        thumbs=content.thumbs,
    )


def render_comparison(comparison: Comparison) -> str:
    """Write the page that compares runs."""
    thinned = [[_thin(curve, _FEWER) for curve in row.curves] for row in comparison.rows]
    rows = [replace(row, curves=each) for row, each in zip(comparison.rows, thinned)]
    return _fill(
        "compare.html.j2",
        data=encode_data(replace(comparison, rows=rows)),
        comparison=comparison,
        keys=list(dict.fromkeys(key for row in comparison.rows for key in row.differs)),
        metrics=list(dict.fromkeys(key for row in comparison.rows for key in row.metrics)),
        columns=list(_draw_columns(comparison)),
        overlays=_draw_overlays(comparison),
        sweep=_draw_sweep(comparison),
        thumbs=None,
    )


def _fill(template: str, **parts: Any) -> str:
    names = ("style.css", "script.js", "map.js")
    style, script, of_map = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    script += of_map if parts["thumbs"] and parts["content"].map else ""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"curves": curves, "scores": scores}
    environment.filters |= {
        "number": format_number,
        "points": format_points,
        "kind": name_kind,
        "metric": name_metric,
        "file": _break_name,
        "picture": check_picture,
        "label": parts["thumbs"].labels.__getitem__ if parts["thumbs"] else int,
    }
    html = environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        # The only script that a browser runs in the page.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **parts,
    )
    # Control characters, and those that turn the text around them, are escaped wherever they are.
    return "\n".join(readable(line, but="\t") for line in html.split("\n"))


def _break_name(name: str) -> Markup:
    """Let a file's name be broken at its signs rather than within a word."""
    parts = re.split(r"(?<=[_/-])|(?=\.)", name)
    return Markup("<wbr>").join(map(escape, parts))


def encode_data(data: Content | Comparison) -> Markup:
    """Write content as JSON that can stand within a script element.

    Pictures, and numbers that are not finite, are null.
    """
    text = json.dumps(_simplify(data), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _simplify(part: Any) -> Any:
    if is_dataclass(part):
        return {each.name: _simplify(getattr(part, each.name)) for each in fields(part)}
    if isinstance(part, Mapping):
        return {key: _simplify(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_simplify(each) for each in part]
    is_picture = isinstance(part, str) and PICTURE.fullmatch(part)
    is_no_number = isinstance(part, float) and not math.isfinite(part)
    return None if is_picture or is_no_number else part


def _count_points(number: int) -> int:
    return _POINTS if number < _OPEN else _FEWER


def _thin(series: Series, points: int) -> Series:
    """Leave out most records of a long series; the lowest and the highest ones stay."""
    kept = keep_records(series.values, points)
    epochs, values = [series.epochs[i] for i in kept], [series.values[i] for i in kept]
    return replace(series, epochs=epochs, values=values)


def _find_span(all_series: Sequence[Curve | Health]) -> tuple[float, float]:
    """Find the epochs that all drawings have as their axis."""
    ends = [find_range(series.epochs) or (0.0, 0.0) for series in all_series]
    low, high = find_range(end for pair in ends for end in pair) or (0.0, 0.0)
    return min(0.0, low), high if high > 0 else 1.0


def list_sections(content: Content) -> list[tuple[str, str, str]]:
    """Name the sections for which there is something to show, in their order, each with a hint."""
    found = [("verdict", "Verdict", content.verdict.rule)]
    if content.map and content.thumbs:
        share = content.map.same_class.get("trained")
        hint = "" if share is None else f"{share:.0f} % of the same class"
        found.append(("map", "Map", f"{len(content.map.clusters):,} images"))
        found += [("neighbours", "Neighbours", hint)] if content.map.queries else []
    elif content.map_command:
        found.append(("map", "Map", "not made yet"))
    if content.curves:
        first = content.curves[0]
        found.append(("curves", "Curves", f"{first.title} {_write_last(first)}"))
    if content.health or content.findings or content.spectra:
        bad = sum(bool(each.finding) for each in content.health)
        hint = f"{bad} of {len(content.health)} with a finding" if bad else "no sign of collapse"
        found.append(("health", "Health", hint if content.health else ""))
    if content.views:
        found.append(("views", "What it saw", f"{len(content.views)} images"))
    if content.judgements:
        best = [each for each in content.judgements[0].scores if each.features == "trained"][:2]
        hints = (f"{name_metric(each.metric)} {format_points(each.value)}" for each in best)
        found.append(("scores", "Scores", ", ".join(hints)))
    for key, title, facts in (("data", "Data", content.data), ("cost", "Cost", content.cost)):
        found += [(key, title, f"{facts[0].what}: {facts[0].value}")] if facts else []
    use = (content.commands, content.differs, content.versions, content.starts, content.checkpoints)
    if any(use):
        found.append(("use", "How to use it", "commands, versions, checkpoints"))
    return found


def _write_last(curve: Curve) -> str:
    last = curve.values[-1] if curve.values else math.nan
    return f"{format_points(last)} %" if curve.percent else format_number(last)


def _draw_curves(content: Content, span: tuple[float, float]) -> dict[str, Any]:
    drawn = []
    for number, curve in enumerate(content.curves):
        points = _count_points(number)
        drawing, hidden = curves.draw_curve(curve, span, content.restarts, points, number)
        caption = " ".join(filter(None, (curve.caption, hidden)))
        shown = {"title": curve.title, "last": _write_last(curve), "svg": drawing, "text": caption}
        drawn.append(shown)
    widths = sorted({curve.smooth for curve in content.curves if curve.smooth > 1})
    return {"open": drawn[:_OPEN], "folded": drawn[_OPEN:], "widths": widths}


def _order_classes(content: Content) -> list[int]:
    """Put the classes whose neighbours are most alike first."""
    shares = content.map.by_class.get("trained", ()) if content.map else ()
    names = content.thumbs.classes if content.thumbs else ()
    return sorted(range(len(names)), key=lambda i: -shares[i] if i < len(shares) else 1.0)


def _draw_judgement(judgement: Judgement) -> dict[str, Any]:
    trained = [each for each in judgement.scores if each.features == "trained"]
    groups = dict.fromkeys((each.layer, each.metric) for each in trained or judgement.scores)
    bars = []
    for layer, metric in groups:
        group = [each for each in judgement.scores if _belongs(each, layer, metric)]
        bars.append((layer, metric, scores.draw_bars(group, judgement.chance)))
    rows: dict[tuple[str, str], dict[str, Score]] = {}
    for each in judgement.scores:
        rows.setdefault((each.features, each.layer), {})[each.metric] = each
    ranked = sorted(judgement.classes, key=lambda row: -row.shares.get("trained", 0.0))
    drawn = ranked if len(ranked) <= 2 * _CLASSES else ranked[:10] + ranked[10 - 2 * _CLASSES :]
    return {
        "judgement": judgement,
        "bars": bars,
        "rows": rows,
        "has_layers": len({layer for layer, _ in groups}) > 1,
        "classes": scores.draw_classes(drawn) if drawn else "",
        "kinds": list(dict.fromkeys(kind for row in drawn for kind in row.shares)),
        "drawn": len(drawn),
        "matrix": list(_list_cells(judgement)) if len(judgement.classes) <= _CLASSES else [],
        "confused": list(_list_confused(judgement)),
    }


def _belongs(score: Score, layer: str, metric: str) -> bool:
    """Check whether a score is of this layer, or of features that have no such layer."""
    is_beside = score.layer == layer or score.features not in ("trained", "untrained")
    return score.metric == metric and is_beside


def _list_cells(judgement: Judgement) -> Iterator[tuple[ClassRow, list[tuple[int, int]], float]]:
    """Give a row a class: the images of each answer with a shade of 0 to 9, the share right."""
    for number, (row, images) in enumerate(zip(judgement.classes, judgement.confusion)):
        total = sum(images) or 1
        yield (
            row,
            [(n, math.ceil(9 * math.sqrt(n / total))) for n in images],
            100 * images[number] / total,
        )


def _list_confused(judgement: Judgement) -> Iterator[tuple[str, str, int]]:
    """Give the ten pairs of classes that are taken for each other most often."""
    table, names = judgement.confusion, [row.name for row in judgement.classes]
    pairs = [(table[one][other] + table[other][one], one, other)
             for one, other in combinations(range(len(table)), 2)]  # fmt: skip
    for count, one, other in sorted(pairs, key=lambda each: (-each[0], *each[1:]))[:10]:
        if count:
            yield names[one], names[other], count


def _draw_columns(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Draw a column a score: the axis, then a cell a run; the best is marked."""
    kinds = dict.fromkeys((e.layer, e.metric) for row in comparison.rows for e in row.scores)
    for layer, metric in kinds:
        found = [next((e for e in row.scores if _belongs(e, layer, metric)), None)
                 for row in comparison.rows]  # fmt: skip
        there = [each for each in found if each]
        base = [each for each in comparison.baselines if _belongs(each, layer, metric)]
        ends = [value for e in [*there, *base] for value in (*(e.interval or ()), e.value)]
        x = fit_axis(min(ends), max(ends), 8, 142)
        x = Axis(max(0.0, x.low), min(100.0, x.high) if x.low < 100 else x.high, 8, 142)
        yield {
            "metric": metric,
            "layer": layer if len({each for each, _ in kinds}) > 1 else "",
            "axis": x,
            "baselines": base,
            "scores": found,
            "best": max(each.value for each in there),
        }


def _draw_overlays(comparison: Comparison) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[int, Curve]]] = {}
    for run, row in enumerate(comparison.rows):
        for curve in row.curves:
            if curve.values:
                found.setdefault(curve.title, []).append((run, curve))
    span = _find_span([curve for row in comparison.rows for curve in row.curves])
    return [
        {"title": title, "svg": curves.draw_overlay(pairs, span), "text": pairs[0][1].caption}
        for title, pairs in found.items()
    ]


def _draw_sweep(comparison: Comparison) -> Markup | str:
    """Draw the scores against the swept key."""
    swept = comparison.swept
    points = [(float(row.differs[swept]), run, row.scores[:2])
              for run, row in enumerate(comparison.rows) if swept and row.scores]  # fmt: skip
    if len({value for value, _, _ in points}) < 2:
        return ""
    metric = points[0][2][0].metric
    base = [each for each in comparison.baselines if each.metric == metric]
    return scores.draw_sweep(points, base, comparison.swept)
