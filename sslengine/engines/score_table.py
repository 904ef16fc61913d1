"""The scores as tables on the screen: details and notes, then kNN and linear probe, with intervals
and chance."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sslengine.engines.label_free import show_label_free
from sslengine.engines.protocols import show_protocols
from sslengine.engines.scoring import Score


def show_all(
    console: Console, scores: Sequence[Score], metric: str, chance: float | None, notes: list[str]
) -> None:
    show_label_free(console, {_kind(each): each.label_free for each in scores})
    show_protocols(console, {_kind(each): each.protocols for each in scores if each.protocols})
    for line in _chosen(scores):
        console.print(f"  chosen      {line}", markup=False)
    for note in notes:
        console.print(f"  note        {note}", markup=False)
    if any(score.knn for score in scores):
        console.print()
        show_scores(console, scores, metric, chance)


def _kind(score: Score) -> str:
    return f"{score.features}, {score.layer}"


def show_scores(
    console: Console, scores: Sequence[Score], metric: str = "accuracy", chance: float | None = None
) -> None:
    """A line for each kind of features and layer, with 95 % intervals: their longer half."""
    neighbours = list(next(score.knn for score in scores if score.knn))
    suffix = "" if metric == "accuracy" else f" {metric}"
    table = Table(box=None, pad_edge=False)
    table.add_column("features")
    table.add_column("layer")
    names = {f"knn_{k}": f"kNN{suffix} (k={k})" for k in neighbours} | {"linear": f"linear{suffix}"}
    for title in names.values():
        table.add_column(title, justify="right")
    for score in scores:
        table.add_row(score.features, score.layer, *(_cell(score, name) for name in names))
    if chance is not None:
        told = "largest class" if metric == "accuracy" else "random order"
        table.add_row("chance", told, *([f"{chance:.1f} %"] * len(names)))
    console.print(table)


def _cell(score: Score, name: str) -> str:
    value, interval = score.metrics.get(name), score.intervals.get(name)
    if value is None:
        return "-"
    return f"{value:.1f} ±{_half(score, name):.1f} %" if interval else f"{value:.1f} %"


def _half(score: Score, name: str) -> float:
    """Return the longer half of the score's interval."""
    value = score.metrics[name]
    low, high = score.intervals.get(name) or (value, value)
    return max(value - low, high - value)


def _chosen(scores: Sequence[Score]) -> list[str]:
    """Of the linear probe, by what its penalty was chosen; and how often a network was drawn."""
    by: dict[str, list[str]] = {}
    for score in scores:
        if chosen := score.about.get("chosen_on", {}).get("linear"):
            by.setdefault(chosen, []).append(score.features)
    found = [f"the linear probe's penalty by {chosen}" for chosen in by]
    several = [each for each in scores if each.about.get("number_of_seeds", 1) > 1]
    found += [f"{each.features}: the mean of {each.about['number_of_seeds']} seeds, the interval "
              f"over these" for each in several]  # fmt: skip
    return found
