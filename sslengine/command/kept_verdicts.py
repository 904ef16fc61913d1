"""Verdicts of earlier commands (`sslengine check --resume FILE`)."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from sslengine.command.checked_files import File
from sslengine.command.config_trials import Verdict
from sslengine.command.new_file import expect_writable
from sslengine.errors import OutputError

# What a line begins with.
KEPT = '{"of": ['


class Kept:
    """Verdicts of earlier commands: one line for each composition and way of checking."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._path: Path | None = options.resume
        self._how = f"{options.train} {options.set} {options.trust_config}"
        self._known: dict[tuple[str, ...], Verdict] = {}
        if self._path is None:
            return
        if not self._path.exists():
            expect_writable(self._path, "--resume")
            return
        for line in own_lines(self._path):
            self._read(line)

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            arguments = tuple(entry["verdict"].pop("arguments"))
            self._known[tuple(entry["of"])] = Verdict(arguments, **entry["verdict"])
        except (ValueError, KeyError, TypeError):
            return  # the last line of a command that was killed

    def get(self, file: File) -> Verdict | None:
        return self._known.get(self._key(file))

    def put(self, file: File, verdict: Verdict) -> None:
        if self._path is not None:
            entry = {"of": self._key(file), "verdict": dataclasses.asdict(verdict)}
            with self._path.open("a") as lines:
                lines.write(f"{json.dumps(entry)}\n")

    def _key(self, file: File) -> tuple[str, ...]:
        changed = file.path.stat().st_mtime_ns
        return (str(file.root), file.name, str(changed), self._how)


def own_lines(file: Path) -> list[str]:
    """Raises if the file is another's. The last line may be cut: a command was killed."""
    if not file.is_file():
        raise OutputError(f"--resume {file}: it is no file. Give another name.")
    text = file.read_text(errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith(KEPT) and not KEPT.startswith(line):
            raise OutputError(
                f"--resume {file}: line {number} is no verdict of this command, and nothing is "
                f"added to it. Give another name."
            )
    if text and not text.endswith("\n"):
        with file.open("a") as lines:
            lines.write("\n")
    return text.splitlines()
