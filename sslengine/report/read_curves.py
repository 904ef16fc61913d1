"""The curves of a run, and its metrics of health, from its records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sslengine.monitor.collapse import READ, healthy_ranges
from sslengine.monitor.run_facts import Facts
from sslengine.report.content import Curve, Health

# Of a record: what it is, and what health shows.
_NO_METRIC = {"kind", "split", "iteration", "epoch", "time", "trunk_rows", "start_rows", *READ}
_ITSELF = r"\g<0>"
# In the order of the page: names, title, caption, over how many records medians are drawn.
_CURVES = (
    ("loss", "Loss", "Of the last step of each record.", 9),
    (r"online\.knn_(\d+)", r"kNN (k=\1) during training, %",
     "Of training images, each by its neighbours among the others.", 1),
    (r"online\.linear", "Linear probe during training, %", "On a half of training images.", 1),
    (r"(loss\.|online\.|test ).*", _ITSELF, "", 1),
    ("lr", "Learning rate", "", 1),
    ("grad_norm", "Gradient norm", "Of all parameters, before clipping.", 9),
    ("data_seconds", "Waiting for data, ms", "How long a step waits for its batch.", 9),
    ("images_per_s", "Images per second", "Of all processes.", 9),
    (".*", _ITSELF, "", 1),
)  # fmt: skip


def read_curves(facts: Facts) -> list[Curve]:
    """Return the loss, online scores, parts of the loss, rates, norms, times, all other metrics."""
    steps = steps_of_epoch(facts)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in facts.rows:
        for name, value in _metrics(row):
            xs, ys = found.setdefault(name, ([], []))
            xs.append(row["iteration"] / steps)
            ys.append(value)
    curves = {}
    for name, points in found.items():
        for place, (pattern, title, caption, smooth) in enumerate(_CURVES):
            if match := re.fullmatch(pattern, name, re.DOTALL):
                title = match.expand(title)
                percent = title.endswith("%")
                curves[place, name] = Curve(title, caption, *points, percent, smooth)
                break
    return [curves[key] for key in sorted(curves)]


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
    """Yield the numbers of a record that make curves, by name; those of a test have its name.

    Of a train phase these are its online scores: the others sum up its steps.
    """
    test, phase = row["split"] == "test", row["kind"] == "phase"
    if not test and not phase and row["kind"] != "step":
        return
    for name, value in row.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or name in _NO_METRIC:
            continue
        if test:
            yield f"test {name}", float(value)
        elif name.startswith("online.") if phase else name != "loss_mean":
            yield name, 1e3 * value if name == "data_seconds" else float(value)
