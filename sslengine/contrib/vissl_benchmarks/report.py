"""The result of a benchmark: a line on the screen for each layer, and <engine>.json at the end."""

from __future__ import annotations

from typing import Any

from sslengine.atomic import write_json
from sslengine.distributed.ranks import is_primary
from sslengine.engines.run import Run, check_results_here
from sslengine.errors import DataError
from sslengine.evaluate.outcome import Outcome


class Report:
    """Of rank 0; on other ranks it does nothing."""

    def __init__(self, run: Run, name: str) -> None:
        self._run, self.path = run, run.run_dir / f"{name}.json"
        self._found: dict[str, Any] = {}

    def add(self, layer: str, found: Outcome) -> None:
        content = {"metrics": found.metrics, "notes": found.notes, "details": found.details}
        self._found[layer] = content
        shown = ", ".join(f"{name} {value:.2f}" for name, value in found.metrics.items())
        self._run.say(f"{layer}: {shown or 'no result'}")
        for note in found.notes:
            self._run.say(f"  note        {note}")
        write_json(self.path, self._found)

    def end(self) -> None:
        """Compare the metrics with config.EXPECTED_RESULTS: test.<layer>.<metric>.

        Raise DataError if there is no metric at all.
        """
        if not is_primary():
            return
        if not any(each["metrics"] for each in self._found.values()):
            raise DataError(
                "\n".join(note for each in self._found.values() for note in each["notes"])
            )
        self._run.say(f"  report      {self.path}")
        metrics = {layer: dict(each["metrics"]) for layer, each in self._found.items()}
        check_results_here(self._run, {"test": metrics})
