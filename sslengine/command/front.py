"""Self-supervised training in PyTorch.

    sslengine train ~/photos --method dino --model vit_small_patch16_224 --out runs/birds
    sslengine embed runs/birds ~/photos --out birds.parquet
    sslengine config=quickstart/simclr

The last of these is VISSL's way: the verb `train` with a config.
"""

# A verb is a module of this folder: its docstring, ARGUMENTS, and `main(arguments) -> exit status`.
# Until one is chosen no torch is imported, and by --help and lists never.
from __future__ import annotations

import errno
import importlib
import io
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TextIO

from sslengine import __version__
from sslengine.config.users_code import users_frames
from sslengine.errors import ConfigError, SSLEngineError, nearest
from sslengine.launch import cli
from sslengine.screen import show_log

VERBS = {
    "train": "train on a folder of images, or a config (the default: config=...)",
    "judge": "score a run's features by kNN and a linear probe",
    "embed": "write the features of images to a file, a row for each",
    "predict": "classes and nearest training images of single images",
    "export": "write a run's network as other libraries read it",
    "convert": "weights between the names of VISSL, torchvision and timm",
    "make": "file lists, permutations, one file of a sharded checkpoint",
    "report": "show a run: what was trained, its metrics, how it was judged; or compare several",
    "rank": "measure checkpoints without labels: which is good?",
    "explain": "show how a config's augmentations run and what they cost",
    "try": "the first run of a method that you write: does it learn, resume, scale?",
    "check": "say of YAML files whether they run here, and if not, why",
    "replay": "repeat the last steps of a run that stopped at a non-finite value",
    "list": "names of methods, models, recipes, transforms, train steps ...",
    "doctor": "look at this machine, or at a folder of images, before training",
    "completion": "print the completion of this command for bash or zsh",
}
USAGE = 2  # exit status
UNREAD = 141  # 128 + SIGPIPE: that of other programs before `| head`
# What a disk says, or a name that is taken by a folder; another OSError may be a bug.
_OF_PLACES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EISDIR)


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    if not given or given[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if given else USAGE
    first, *rest = given
    if first == "--version":
        print(f"sslengine {__version__}")
        return 0
    if first in VERBS:
        return run(first, rest)
    if "=" in first or first.startswith(("-", "+", "~")):
        return _status_of(cli.main, given)
    hint = nearest(first, VERBS)
    print(f"error: {first!r} is no verb of sslengine. {hint}".rstrip(), file=sys.stderr)
    print(f"expected one of: {', '.join(VERBS)}; or config=NAME", file=sys.stderr)
    return USAGE


def run(verb: str, arguments: Sequence[str]) -> int:
    """Return the exit status of a verb: docs/command.md has the table. An error is one message."""
    module = importlib.import_module(f"sslengine.command.{verb}")

    def main(given: Sequence[str]) -> int:
        _expect_filled(given)
        with show_log():
            return int(module.main([_expand_home(each) for each in given]))

    return _status_of(main, arguments)


def _expect_filled(arguments: Sequence[str]) -> None:
    """A variable of the shell that is not set leaves nothing: --weights "$FILE"."""
    for number, each in enumerate(arguments):
        name, equals, value = each.partition("=")
        if not each or (name.startswith("--") and equals and not value):
            before = arguments[number - 1] if number else ""
            where = name or (before if before.startswith("-") else f"argument {number + 1}")
            raise ConfigError(f"{where}: nothing was given. Is a variable of the shell not set?")


def _expand_home(argument: str) -> str:
    """Expand ~: a shell does not replace the ~ of `--out=~/runs`, or one in quotes."""
    option, equals, path = argument.rpartition("=")
    return f"{option}{equals}{os.path.expanduser(path)}" if path.startswith("~/") else argument


def _status_of(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        status = main(arguments)
        sys.stdout.flush()
        return status
    except (SSLEngineError, KeyboardInterrupt) as error:
        return cli.ended_by(error)
    except OSError as error:
        unread = isinstance(error, BrokenPipeError) and _is_unread(sys.stdout)
        if not unread and error.errno not in _OF_PLACES:
            raise
        _drop_what_is_left(sys.stdout)
        if unread:
            return UNREAD
        place = error.filename2 or error.filename or "what was to be written"
        return cli.ended_by(SSLEngineError(f"{place}: {error.strerror}."))
    except Exception as error:
        users = users_frames(error)
        if users is None:
            raise
        traceback.print_exception(type(error), error, users)  # the log has all frames
        return 1


def _is_unread(stream: TextIO) -> bool:
    """Is it a pipe that nothing reads? A broken pipe may be another one."""
    poll = select.poll()
    poll.register(stream, 0)  # for errors alone
    return bool(poll.poll(0))


def _drop_what_is_left(stream: TextIO) -> None:
    """Empty a stream that cannot be written: Python would try again at its end, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _help() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:{width}}  {what}" for verb, what in VERBS.items()]
    return "\n".join([str(__doc__), *lines, "", "sslengine VERB --help says more of each."])
