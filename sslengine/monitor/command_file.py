"""Write RUN/command.sh: what started a run, as a script that starts or resumes it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from sslengine.atomic import write_whole
from sslengine.monitor.environment import masked, typed_command

_HEAD = "#!/bin/sh\n# What started this run; again, it resumes it. *** is a secret.\n"
_AGAIN = "\n# Started again with:\n"


def keep_command(run_dir: Path, arguments: Sequence[str]) -> Path:
    """Write it, unless it is there; a later command that differs is added as a comment.

    arguments: the same command as config=... KEY=VALUE; of a run from Python there is no other.
    """
    file, lines = run_dir / "command.sh", _lines(arguments)
    there = file.read_text("utf-8", errors="surrogateescape") if file.is_file() else ""
    if _commented(lines) not in _commented(there):
        text = f"{there}{_AGAIN}{_commented(lines)}" if there else f"{_HEAD}{lines}"
        write_whole(file, text.encode("utf-8", errors="surrogateescape"))
        mode = file.stat().st_mode
        file.chmod(mode | (mode & 0o444) >> 2)  # who may read it may run it
    return file


def _lines(arguments: Sequence[str]) -> str:
    written_out, typed = shlex.join(["sslengine", *masked(arguments)]), typed_command()
    if not typed.startswith("sslengine "):
        typed = written_out
    text = f"cd {shlex.quote(str(Path.cwd()))} || exit\n{typed}\n"
    if written_out != typed:
        text += f"# The same with all that was chosen:\n{_commented(written_out)}\n"
    return text


def _commented(text: str) -> str:
    """Begin every line with one #, also inside of quotes."""
    return re.sub(r"^(?:# )*(?=.)", "# ", text, flags=re.MULTILINE)
