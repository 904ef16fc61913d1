"""Run the parts of `sslengine judge` one after the other: an error of one does not stop the others.

What was left out, and why, is printed at the end and in the notes of evaluation.json.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sslengine import startup
from sslengine.config.resolve import Resolved
from sslengine.errors import Preempted, SSLEngineError, readable
from sslengine.launch.cli import ended_by, run_all, start
from sslengine.registry import import_dotted


def start_parts(runs: Sequence[Resolved], left_out: Sequence[str]) -> int:
    """The worst exit status. left_out: notes on parts that are not among the runs."""
    notes = [*left_out]
    if any(run.config.SLURM.USE_SLURM for run in runs):  # the jobs report their errors themselves
        _tell(notes)
        return start(runs)
    worst, printed = 0, set()
    for number, run in enumerate(runs):
        if number:
            startup.begin()
        try:
            run_all([run])
        except (Preempted, KeyboardInterrupt) as error:
            return ended_by(error)
        except SSLEngineError as error:
            worst = max(worst, ended_by(error, printed=str(error) not in printed))
            printed.add(str(error))
            notes.append(f"{_name(run)}: {' '.join(str(error).split())}")
    if os.environ.get("RANK", "0") == "0":
        _tell(notes)
        folder = Path(runs[0].config.CHECKPOINT.DIR)
        import_dotted("sslengine.engines.trained_results:add_notes")(folder, notes)
    return worst


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"  note        {readable(note)}")


def _name(run: Resolved) -> str:
    """As the row of the table has it."""
    if run.engine_name == "sweep":
        return f"{run.config.HEAD_SWEEP.HEAD}_sweep"
    return str(run.config.FINETUNE.NAME) if run.engine_name == "finetune" else run.engine_name
