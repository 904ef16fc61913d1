"""Draw the page of a run, and the page that compares runs: one HTML file each."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sslengine.errors import readable
from sslengine.report import curves, scores
from sslengine.report.content import (
    ClassRow,
    Comparison,
    Content,
    Curve,
    Health,
    Judgement,
    Score,
    Thumbs,
    Views,
)
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_duration,
    format_number,
    format_points,
    keep_records,
)
from sslengine.report.svg import name_kind

_FOLDER = Path(__file__).parent
# So many curves are open, with so many points; the rest are folded, and have fewer.
_OPEN, _POINTS, _FEWER = 9, 400, 120
_CLASSES = 20  # a confusion matrix of more cannot be read, nor a drawing of more than twice that
_PICTURES: dict[type, set[str]] = {Thumbs: {"sprite"}, Views: {"original", "views"}}
_PICTURE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]*")


def render(content: Content) -> str:
    """Write the page of one run."""
    kept = thin_content(content)
    return _fill(
        "page.html.j2",
        kept,
        content=content,
        sections=list_sections(content),
        curves=_draw_curves(content),
        health=_draw_health(content),
        judgements=[_draw_judgement(each) for each in content.judgements],
        spectra=curves.draw_spectra(content.spectra) if content.spectra else "",
        maps=_draw_maps(content),
        legend=_draw_legend(content),
        thumbs=content.thumbs,
        with_map=content.map is not None,
    )


def render_comparison(comparison: Comparison) -> str:
    """Write the page that compares runs."""
    kept = replace(
        comparison,
        rows=[replace(row, curves=_thin_curves(row.curves, _FEWER)) for row in comparison.rows],
    )
    return _fill(
        "compare.html.j2",
        kept,
        comparison=comparison,
        keys=list(dict.fromkeys(key for row in comparison.rows for key in row.differs)),
        metrics=list(dict.fromkeys(key for row in comparison.rows for key in row.metrics)),
        columns=_draw_columns(comparison),
        overlays=_draw_overlays(comparison),
        sweep=_draw_sweep(comparison),
        thumbs=None,
        with_map=False,
    )


# -- the file ------------------------------------------------------------------------------------


def _fill(template: str, data: Content | Comparison, **parts: Any) -> str:
    files = ["script.js", "map.js"] if parts["with_map"] else ["script.js"]
    script = "".join((_FOLDER / "templates" / name).read_text(encoding="utf-8") for name in files)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "points": format_points,
        "kind": name_kind,
        "metric": name_metric,
        "picture": _check_picture,
        "duration": format_duration,
    }
    if parts["thumbs"]:
        environment.filters["label"] = parts["thumbs"].labels.__getitem__
    environment.globals["draw_shares"] = scores.draw_shares
    return environment.get_template(template).render(
        data=Markup(encode_data(data)),
        style=Markup((_FOLDER / "templates" / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        digest=digest,
        **parts,
    )


def _clean(value: Any) -> Any:
    """Clean each text that a template writes; drawings and templates are clean already."""
    return (
        readable(value, but="\n\t")
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def _check_picture(uri: str) -> Markup:
    """Let through a picture that lies in the page, no address."""
    if not _PICTURE.fullmatch(uri):
        raise ValueError(f"not a picture in base64: {uri[:40]!r}")
    return Markup(uri)


def encode_data(data: Content | Comparison) -> str:
    """Write content as JSON that can stand within a script element.

    Pictures, and numbers that are not finite, are null.
    """
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(part: Any) -> Any:
    if is_dataclass(part) and not isinstance(part, type):
        pictures = _PICTURES.get(type(part), set())
        return {
            each.name: None if each.name in pictures else _plain(getattr(part, each.name))
            for each in fields(part)
        }
    if isinstance(part, Mapping):
        return {str(key): _plain(value) for key, value in part.items()}
    if isinstance(part, (str, bool, int)) or part is None:
        return part
    if isinstance(part, Sequence):
        return [_plain(each) for each in part]
    if isinstance(part, float):
        return part if math.isfinite(part) else None
    return str(part)


# -- long series ---------------------------------------------------------------------------------


def _is_open(number: int, curve: Curve) -> bool:
    return number < _OPEN and not curve.group


def _thin_curves(all_curves: Sequence[Curve], points: int = 0) -> list[Curve]:
    thinned = []
    for number, curve in enumerate(all_curves):
        most = points or (_POINTS if _is_open(number, curve) else _FEWER)
        kept = keep_records(curve.values, most)
        epochs, values = [curve.epochs[i] for i in kept], [curve.values[i] for i in kept]
        thinned.append(replace(curve, epochs=epochs, values=values))
    return thinned


def _thin_health(health: Health) -> Health:
    kept = keep_records(health.values, _POINTS)
    epochs, values = [health.epochs[i] for i in kept], [health.values[i] for i in kept]
    return replace(health, epochs=epochs, values=values)


def thin_content(content: Content) -> Content:
    """Leave out most records of long series; their lowest and highest ones stay."""
    return replace(
        content,
        curves=_thin_curves(content.curves),
        health=[_thin_health(each) for each in content.health],
    )


# -- the page of a run ---------------------------------------------------------------------------


class Section(NamedTuple):
    key: str
    title: str
    hint: str


def list_sections(content: Content) -> list[Section]:
    """Name the sections for which there is something to show, in their order, each with a hint."""
    found = [Section("verdict", "Verdict", content.verdict.rule)]
    if content.map and content.thumbs:
        found.append(Section("map", "Map", f"{len(content.map.clusters):,} images"))
        if content.map.queries:
            share = content.map.same_class.get("trained")
            hint = "" if share is None else f"{share:.0f} % of the same class"
            found.append(Section("neighbours", "Neighbours", hint))
    elif content.map_command:
        found.append(Section("map", "Map", "not made yet"))
    if content.curves:
        first = content.curves[0]
        last = format_number(first.values[-1]) if first.values else ""
        found.append(Section("curves", "Curves", f"{first.title} {last}"))
    if content.health or content.findings or content.spectra:
        bad = sum(bool(each.finding) for each in content.health)
        hint = f"{bad} of {len(content.health)} with a finding" if bad else "no sign of collapse"
        found.append(Section("health", "Health", hint if content.health else ""))
    if content.views:
        found.append(Section("views", "What it saw", f"{len(content.views)} images"))
    if content.judgements:
        best = [each for each in content.judgements[0].scores if each.features == "trained"]
        hint = ", ".join(
            f"{name_metric(each.metric)} {format_points(each.value)}" for each in best[:2]
        )
        found.append(Section("scores", "Scores", hint))
    for key, title, facts in (("data", "Data", content.data), ("cost", "Cost", content.cost)):
        if facts:
            found.append(Section(key, title, f"{facts[0].what}: {facts[0].value}"))
    use = (content.commands, content.differs, content.versions, content.starts, content.checkpoints)
    if any(use):
        found.append(Section("use", "How to use it", "commands, versions, checkpoints"))
    return found


def name_metric(metric: str) -> str:
    """Write a metric as people do: knn_20 is kNN, k = 20."""
    known = re.fullmatch(r"knn_(\d+)", metric)
    if known:
        return f"kNN, k = {known[1]}"
    return {"knn": "kNN", "linear": "linear probe"}.get(metric, metric)


def _find_span(content: Content) -> tuple[float, float]:
    epochs = [each for part in (*content.curves, *content.health) for each in part.epochs]
    return find_range([0.0, *epochs]) or (0.0, 1.0)


def _draw_curves(content: Content) -> dict[str, Any]:
    span = _find_span(content)
    groups: dict[str, list[dict[str, Any]]] = {}
    for number, curve in enumerate(content.curves):
        is_open = _is_open(number, curve)
        points = _POINTS if is_open else _FEWER
        drawing = curves.draw_curve(curve, span, content.restarts, points, number)
        last = format_number(curve.values[-1]) if curve.values else ""
        caption = " ".join(filter(None, (curve.caption, curves.find_hidden(curve, points))))
        shown = {"title": curve.title, "last": last, "svg": drawing, "caption": caption}
        groups.setdefault("" if is_open else curve.group or "Further metrics", []).append(shown)
    widths = sorted({curve.smooth for curve in content.curves if curve.smooth > 1})
    return {"open": groups.pop("", []), "folded": groups, "widths": widths}


def _draw_health(content: Content) -> list[dict[str, Any]]:
    span = find_range(each for part in content.health for each in part.epochs) or (0.0, 1.0)
    rows = []
    for each in content.health:
        drawing = curves.draw_strip(each, span, content.restarts)
        rows.append({"metric": each, "svg": drawing, "range": _name_range(each)})
    return rows


def _name_range(health: Health) -> str:
    low, high = (None if end is None else format_number(end) for end in (health.low, health.high))
    if low is None:
        return "" if high is None else f"below {high}"
    return f"above {low}" if high is None else f"{low} to {high}"


def _draw_maps(content: Content) -> dict[str, Markup]:
    if not content.map or not content.thumbs:
        return {}
    labelled = any(label >= 0 for label in content.thumbs.labels)
    groups = content.thumbs.labels if labelled else content.map.clusters
    return {
        name: scores.draw_places(each, groups, name) for name, each in content.map.places.items()
    }


def _draw_legend(content: Content) -> list[dict[str, Any]]:
    """Give the classes, those with the most like neighbours first."""
    if not content.map or not content.thumbs:
        return []
    after = content.map.by_class.get("trained", ())
    before = content.map.by_class.get("untrained", ())
    rows = []
    for number, name in enumerate(content.thumbs.classes):
        share = after[number] if number < len(after) else math.nan
        row = {"number": number, "name": name, "share": share, "svg": ""}
        if math.isfinite(share):
            earlier = before[number] if number < len(before) else None
            row["svg"] = scores.draw_pair(earlier, share, number % 10)
        rows.append(row)
    return sorted(rows, key=lambda row: -row["share"] if math.isfinite(row["share"]) else 1.0)


def _draw_judgement(judgement: Judgement) -> dict[str, Any]:
    groups = dict.fromkeys((e.layer, e.metric) for e in judgement.scores if e.features == "trained")
    bars = []
    for layer, metric in groups or dict.fromkeys((e.layer, e.metric) for e in judgement.scores):
        group = [e for e in judgement.scores if e.metric == metric and _is_beside(e, layer)]
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
        "metrics": list(dict.fromkeys(each.metric for each in judgement.scores)),
        "gains": list(dict.fromkeys(each.metric for each in judgement.scores if each.gain)),
        "layers": len({each.layer for each in judgement.scores if each.features == "trained"}) > 1,
        "classes": scores.draw_classes(drawn) if drawn else "",
        "kinds": list(dict.fromkeys(kind for row in drawn for kind in row.shares)),
        "drawn": len(drawn),
        "matrix": list(_list_cells(judgement)) if len(judgement.classes) <= _CLASSES else [],
        "confused": list(_list_confused(judgement)),
    }


def _is_beside(score: Score, layer: str) -> bool:
    """Check whether a score is of this layer, or of features that have no such layer."""
    return score.layer == layer or score.features not in ("trained", "untrained")


def _list_cells(judgement: Judgement) -> Iterator[tuple[ClassRow, list[tuple[int, int]], float]]:
    """Give a row a class: the images of each answer with a shade of 0 to 9, the share right."""
    for number, (row, images) in enumerate(zip(judgement.classes, judgement.confusion)):
        total = sum(images) or 1
        yield row, [(n, math.ceil(9 * n / total)) for n in images], 100 * images[number] / total


def _list_confused(judgement: Judgement) -> Iterator[tuple[str, str, int]]:
    """Give the ten pairs of classes that are taken for each other most often."""
    pairs: dict[tuple[int, int], int] = {}
    for wanted, images in enumerate(judgement.confusion):
        for answer, count in enumerate(images):
            if wanted != answer and count:
                pair = min(wanted, answer), max(wanted, answer)
                pairs[pair] = pairs.get(pair, 0) + count
    names = [row.name for row in judgement.classes]
    for (one, other), count in sorted(pairs.items(), key=lambda each: (-each[1], each[0]))[:10]:
        yield names[one], names[other], count


# -- the comparison ------------------------------------------------------------------------------


def _list_metrics(comparison: Comparison) -> list[tuple[str, str]]:
    return list(dict.fromkeys((e.layer, e.metric) for row in comparison.rows for e in row.scores))


def _find_score(row_scores: Sequence[Score], layer: str, metric: str) -> Score | None:
    found = (e for e in row_scores if e.metric == metric and _is_beside(e, layer))
    return next(found, None)


def _draw_columns(comparison: Comparison) -> list[dict[str, Any]]:
    """Draw a column a score: the axis, then a cell a run; the best is marked."""
    columns = []
    for layer, metric in _list_metrics(comparison):
        found = [_find_score(row.scores, layer, metric) for row in comparison.rows]
        there = [each for each in found if each]
        base = [e for e in comparison.baselines if e.metric == metric and _is_beside(e, layer)]
        ends = [v for e in [*there, *base] for v in (*(e.interval or ()), e.value)]
        fitted = fit_axis(min(ends), max(ends), 8, 162)
        x = Axis(max(0.0, fitted.low), min(100.0, max(fitted.high, fitted.low + 1)), 8, 162)
        best = max(each.value for each in there)
        cells = [
            (
                each,
                scores.draw_interval(each, x, run, base) if each else "",
                bool(each) and each.value == best,
            )
            for run, each in enumerate(found)
        ]
        columns.append(
            {"layer": layer, "metric": metric, "axis": scores.draw_ticks(x), "cells": cells}
        )
    return columns


def _draw_overlays(comparison: Comparison) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[int, Curve]]] = {}
    for run, row in enumerate(comparison.rows):
        for curve in row.curves:
            if curve.values:
                found.setdefault(curve.title, []).append((run, curve))
    epochs = [e for pairs in found.values() for _, curve in pairs for e in curve.epochs]
    span = find_range([0.0, *epochs]) or (0.0, 1.0)
    return [
        {"title": title, "svg": curves.draw_overlay(pairs, span), "caption": pairs[0][1].caption}
        for title, pairs in found.items()
    ]


def _draw_sweep(comparison: Comparison) -> Markup | str:
    """Draw the scores against the swept key where its values are numbers."""
    points = []
    for run, row in enumerate(comparison.rows):
        try:
            value = float(row.differs.get(comparison.swept, ""))
        except ValueError:
            continue
        if math.isfinite(value) and row.scores:
            points.append((value, run, row.scores[:2]))
    if len({value for value, _, _ in points}) < 2:
        return ""
    shown = {each.metric for _, _, some in points for each in some}
    base = [each for each in comparison.baselines if each.metric in shown]
    return scores.draw_sweep(points, base[:2], comparison.swept)
