"""Several runs as a table on the screen: a row a run, the keys in which they differ first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from sslengine.report.content import Comparison, Row
from sslengine.report.scale import name_metric

KEYS, WIDTH = 3, 12  # keys that differ, of which a table has a column; characters of a value


def show(console: Console, found: Comparison, notes: Sequence[str] = ()) -> None:
    """Print the sentence, the table and what cannot be compared."""
    keys = list(found.rows[0].differs)[:KEYS]
    metrics = list(dict.fromkeys(each.metric for row in found.rows for each in row.scores))
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for key in keys:
        table.add_column(".".join(key.split(".")[-2:]), justify="right", overflow="fold")
    for title in (*map(name_metric, metrics), "loss", "steps"):
        table.add_column(title, justify="right")
    table.add_column("status")
    for row in found.rows:
        table.add_row(*_cells(row, keys, metrics))
    console.print(found.sentence)
    console.print(*filter(None, [found.detail]), "", sep="\n")
    console.print(table)
    more = len(found.rows[0].differs) - len(keys)
    told = [f"{more} more keys differ: --json has them, the page too"] * (more > 0)
    for note in (*told, *found.notes, *notes):
        console.print(f"  note  {note}", soft_wrap=True)


def _cells(row: Row, keys: Sequence[str], metrics: Sequence[str]) -> list[str]:
    scores = {each.metric: each for each in row.scores}
    cells = [f"{scores[each].value:.1f}" if each in scores else "-" for each in metrics]
    loss = row.metrics.get("loss")
    state = f"{row.status}: {', '.join(row.findings)}" if row.findings else row.status
    return [
        row.name, *(_end_of(row.differs[key]) for key in keys), *cells,
        "-" if loss is None else f"{loss:.4g}", row.length.partition(" ")[0], state,
    ]  # fmt: skip


def _end_of(text: str) -> str:
    """Return a value, or its end, where paths differ."""
    return text if len(text) <= WIDTH else f"...{text[3 - WIDTH :]}"
