"""Try a method that you write: the first command, before a run.

    sslengine try contrast.py:SimCLR
    sslengine try contrast.py:SimCLR dim=64 --data ~/photos
    sslengine try whiten.py:WhitenLoss config=whiten
    sslengine try dino DATA.TRAIN.BATCHSIZE_PER_REPLICA=8 --pdb

It is built with a small network on the built-in shapes, in the quickstart of its name or of SimCLR;
config=NAME takes another. Then it learns one batch, each parameter gets a gradient, a killed run
resumes, and two processes end where one does. An error ends at the line of yours that raised it.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from sslengine.command.arguments import Argument, make_parser
from sslengine.command.recipes import QUICK, names_in, own_method
from sslengine.config.compose import compose, overrides, typed
from sslengine.config.users_code import is_users, users_frames
from sslengine.errors import LaunchError, SSLEngineError
from sslengine.methods import DEFAULT
from sslengine.progress import progress
from sslengine.registry import LOSSES, component_key
from sslengine.screen_console import LiteralConsole

ARGUMENTS = (
    Argument("method", "FILE.py:CLASS, or a name of `list methods` or `list losses`",
             metavar="METHOD"),
    Argument("values", "an argument of the method, or any key of the config", metavar="KEY=VALUE",
             nargs="*"),
    Argument("--data", "images, as for `sslengine train`; default: built-in shapes", metavar="DIR"),
    Argument("--pdb", "open the debugger at the line of yours that raised the error", bool),
)  # fmt: skip
# A frame in the text of a traceback, of another process.
_FRAME = re.compile(r'^  File "(.+)", line \d+, in .*\n(?:    .*\n)*', re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if it does all of it, else 1."""
    given = make_parser(__name__).parse_intermixed_args(arguments)
    name, said = choose(given)
    from sslengine.testing.promises import BrokenPromise
    from sslengine.testing.runs import preload
    from sslengine.testing.trial import Trial

    preload()  # for two ranks
    console = LiteralConsole(width_of_file=140, soft_wrap=True)
    console.print(f"{name or given.method}: {' '.join(said)}")
    try:
        if ":" in name:
            LOSSES.get(name, "METHOD")
    except SSLEngineError as error:
        console.print(*_describe(error, given.pdb), sep="\n")
        return 1
    failed = False
    trial = Trial(name, said, lambda rows: _show(console, rows))
    for step in trial.steps():
        what = step.__name__.replace("_", " ")
        if failed and step == trial.two_ranks:
            console.print(f"       {what}: not tried before the rest is right")
            break
        try:
            with progress(what):
                found = step()
            console.print(f"ok     {what}: {found}")
        except BrokenPromise as error:
            failed = True
            console.print(f"wrong  {what}: {error}", *_lines_of(name, error.names), sep="\n")
        except Exception as error:
            console.print(f"wrong  {what}:", *_describe(error, given.pdb), sep="\n")
            return 1
    return int(failed)


def choose(given: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the name of the loss, and the arguments of the command with config=... ."""
    asked, own = given.method, own_method(given.method)
    quick = {each: _loss_of(each) for each in names_in(QUICK)} if not own else {}
    of_losses = {loss: each for each, loss in reversed([*quick.items()])}
    name = own or quick.get(asked, asked)
    files = [each for each in given.values if each.startswith(("config=", "+config/"))]
    if not any(each.startswith("config=") for each in files):
        file = asked if asked in quick else of_losses.get(asked, DEFAULT)
        files.insert(0, f"config={QUICK}/{file}")
    said = [each for each in given.values if each not in files]
    mine = [each for each in said if re.match(r"[a-z]\w*=", each)]
    options = f"config.LOSS.{component_key(name)}"
    values = [
        *typed([each for each in said if each not in mine]),
        *(f"{options}.{each}" for each in mine),
    ]
    images = _images(given.data, [*files, *values]) if given.data else []
    return name, [*files, *images, *values]


def _loss_of(method: str) -> str:
    return compose([f"config={QUICK}/{method}"]).last_value("config.LOSS.name") or ""


def _images(place: str, said: Sequence[str]) -> list[str]:
    """Return the keys of a config for these images, with views that keep their bands."""
    from sslengine.command import bands, data

    composed = compose(said)
    images = data.look(place, lambda key: composed.last_value(f"config.DATA.TRAIN.{key}"))
    keys, measured = images.keys(), bands.look(images)
    if measured:
        views = measured.views(composed.last_value("config.DATA.TRAIN.TRANSFORMS") or [])
        keys |= measured.keys(views)
    return overrides(keys)


def _show(console: LiteralConsole, rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table("module", "output", "parameters", "", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for row in rows:
        table.add_row(*row)
    console.print(table)


# ---- where in the author's file


def _describe(error: Exception, debugs: bool) -> Iterator[str]:
    """Yield the error with the author's lines that lead to it; raise it if there are none."""
    if isinstance(error, LaunchError):  # of a rank, with its traceback as text
        frames = [each[0] for each in _FRAME.finditer(str(error)) if is_users(each[1])]
        yield f"{''.join(frames)}{str(error).strip().splitlines()[-1]}" if frames else str(error)
        return
    cause = next((each for each in (error, error.__cause__) if each and _own_part(each)), None)
    if cause is None:
        raise error
    trace = _own_part(cause)
    yield "".join(traceback.format_exception(type(cause), cause, trace, chain=False)).rstrip()
    if debugs:
        import pdb

        sys.stdout.flush()
        pdb.post_mortem(trace)
    else:
        yield "--pdb opens the debugger at this line."


def _own_part(error: BaseException) -> TracebackType | None:
    """Return the author's frames of the error's traceback, from the first to the last."""
    kept = [*_walk(users_frames(error))]
    trace = None
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            yield trace
        trace = trace.tb_next


def _lines_of(name: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the class that assign these attributes; without any, what it returns."""
    thing: Any = LOSSES.get(name) if name else None
    try:
        file, (lines, start) = inspect.getsourcefile(thing), inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return
    parts = dict.fromkeys(each.partition(".")[2].partition(".")[0] for each in names)
    for part in parts or [""]:
        wanted = rf"\bself\.{part}\b[^=]*=[^=]" if part else r"^\s*return\b"
        found = [number for number, line in enumerate(lines) if re.search(wanted, line)]
        for number in found[-1:]:
            yield f'  File "{file}", line {start + number}\n    {lines[number].strip()}'
