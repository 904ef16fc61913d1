"""The curves of a run, and its metrics of health, from its records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sslengine.monitor.collapse import READ, healthy_ranges
from sslengine.monitor.run_facts import Facts
from sslengine.report.content import Curve, Health

# Of a record: what it is, and what health shows.
_NO_METRIC = {"kind", "split", "iteration", "epoch", "time", "trunk_rows", "start_rows", *READ}
_KNOWN = {
    "loss": ("Loss", "Of the last step of each record."),
    "grad_norm": ("Gradient norm", "Of all parameters, before clipping."),
    "lr": ("Learning rate", ""),
    "data_seconds": ("Waiting for data, ms", "How long a step waits for its batch."),
    "images_per_s": ("Images per second", "Of all processes."),
}
_SMOOTHED = {"loss": 9, "grad_norm": 9, "data_seconds": 9, "images_per_s": 9}


def read_curves(facts: Facts) -> list[Curve]:
    """Return the loss and its parts, online scores, rates, norms, times, then all other metrics."""
    steps = steps_of_epoch(facts)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in facts.rows:
        for name, value in _metrics(row):
            xs, ys = found.setdefault(name, ([], []))
            xs.append(row["iteration"] / steps)
            ys.append(value)
    return [_curve(name, *found[name]) for name in sorted(found, key=_order)]


def read_health(facts: Facts) -> list[Health]:
    steps = steps_of_epoch(facts)
    rows = [row for row in facts.rows if row["kind"] == "phase" and row["split"] == "train"]
    found = []
    for each in healthy_ranges(facts.ends, facts.config):
        points = [(row["iteration"] / steps, float(row[each.metric])) for row in rows
                  if isinstance(row.get(each.metric), (int, float))]  # fmt: skip
        if not points:
            continue
        xs, ys = map(list, zip(*points))
        below = each.low is not None and ys[-1] < each.low
        above = each.high is not None and ys[-1] > each.high
        finding = "outside its range" if below or above else ""
        found.append(Health(each.title, each.caption, xs, ys, each.low, each.high, finding))
    return found


def read_restarts(facts: Facts) -> list[float]:
    steps = steps_of_epoch(facts)
    return [each["step"] / steps for each in facts.starts[1:] if isinstance(each.get("step"), int)]


def steps_of_epoch(facts: Facts) -> float:
    """Return how many steps an epoch has; 1 for a run that has ended none: steps are shown."""
    phases = (row for row in facts.rows if row["kind"] == "phase" and row["split"] == "train")
    ended = [row["iteration"] / (row["epoch"] + 1) for row in phases if row["iteration"]]
    epochs = facts.config.get("OPTIMIZER", {}).get("num_epochs")
    planned = facts.status.steps / epochs if epochs and facts.status.steps else 1.0
    return max(ended, default=planned)


def _metrics(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record that make curves, by name; those of a test have its name."""
    test = row["split"] == "test"
    if row["kind"] == "step" or test:
        skipped: Sequence[str] = ()
    elif row["kind"] == "phase":
        skipped = ("loss", *(name for name in row if not name.startswith("online.")))
    else:
        return
    for name, value in row.items():
        if name in _NO_METRIC or name in skipped or isinstance(value, bool):
            continue
        if isinstance(value, (int, float)):
            if test:
                yield f"test {name}", float(value)
            elif name != "loss_mean":
                yield name, 1e3 * value if name == "data_seconds" else float(value)


def _curve(name: str, xs: list[float], ys: list[float]) -> Curve:
    title, caption = _KNOWN.get(name, (name, ""))
    if name.startswith("online.knn_"):
        title = f"kNN (k={name.rpartition('_')[2]}) during training, %"
        caption = "Of training images, each by its neighbours among the others."
    elif name == "online.linear":
        title, caption = "Linear probe during training, %", "On a half of training images."
    return Curve(title, caption, xs, ys, title.endswith("%"), _SMOOTHED.get(name, 1))


def _order(name: str) -> tuple[int, str]:
    first = ("loss", "loss.", "online.", "test ", "lr", "grad_norm", "data_seconds", "images_per_s")
    matches = (name == each or (each[-1] in ". " and name.startswith(each)) for each in first)
    place = next((number for number, each in enumerate(matches) if each), len(first))
    return place, name
