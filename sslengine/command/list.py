"""Names that a config, or another verb, may have.

    sslengine list                        what can be listed
    sslengine list methods                what each is, when to take it, what it needs
    sslengine list models                 trunks of sslengine, and of plugins (--plugin MODULE)
    sslengine list models 'vit_*dino*'    all that --model takes, timm's and torchvision's too
    sslengine list transforms --json
    sslengine list --vissl                names and keys of VISSL that are not here, what to use

Of torch.nn a config may name any loss too, of torchvision any transform.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from textwrap import fill
from typing import NamedTuple

from sslengine import absent, registry
from sslengine.command.arguments import JSON, PLUGINS, Argument, make_parser, print_document
from sslengine.command.networks import names_of, trunks
from sslengine.command.recipes import PHOTOS, QUICK, SMALL, about, methods, methods_with_forms
from sslengine.config.compose import shipped_configs
from sslengine.errors import listing
from sslengine.export import FORMATS
from sslengine.registry import load_plugins
from sslengine.screen import columns


def _methods() -> list[str]:
    return sorted({*methods(), *registry.LOSSES.installed()})


def _recipes() -> list[str]:
    root = shipped_configs()
    kinds = (PHOTOS, SMALL, QUICK, "pretrain")
    found = (path for kind in kinds for path in sorted((root / kind).rglob("*.yaml")))
    files = (path.relative_to(root).with_suffix("").as_posix() for path in found)
    return [*methods_with_forms(), *files]


def _formats() -> list[str]:
    return [*FORMATS]


VISSL = "VISSL's names and keys that are not here"


class Kind(NamedTuple):
    names: Callable[[], Sequence[str]]
    about: str


KINDS: dict[str, Kind] = {
    "methods": Kind(_methods, "--method: what each is, when to take it, what it needs"),
    "models": Kind(trunks, "--model: trunks of sslengine and plugins; with a pattern all networks"),
    "recipes": Kind(_recipes, "--recipe: a method for a machine, from weights, as published"),
    "transforms": Kind(registry.TRANSFORMS.names, "TRANSFORMS: how an image becomes views"),
    "train-steps": Kind(registry.TRAIN_STEPS.names, "TRAIN_STEP_NAME: what is done with a batch"),
    "losses": Kind(registry.LOSSES.names, "LOSS.name: methods, and plain losses"),
    "heads": Kind(registry.HEADS.names, "HEAD.PARAMS: what comes after the trunk"),
    "hooks": Kind(registry.HOOKS.names, "HOOKS.EXTRA: what is done during a run"),
    "sources": Kind(registry.DATA_SOURCES.names, "DATA_SOURCES: how files are read"),
    "collators": Kind(registry.COLLATORS.names, "COLLATE_FUNCTION: how images become a batch"),
    "schedulers": Kind(registry.SCHEDULERS.names, "param_schedulers: how rates change"),
    "engines": Kind(registry.ENGINES.names, "engine_name: what is done with a config"),
    "label-free": Kind(registry.LABEL_FREE.names, "LABEL_FREE: metrics without labels"),
    "formats": Kind(_formats, "export --to: what a network is written as"),
}


ARGUMENTS = (
    Argument("kind", ", ".join(KINDS), metavar="KIND", choices=tuple(KINDS), nargs="?"),
    Argument("pattern", "with * and ?, in quotes", metavar="PATTERN", nargs="?"),
    PLUGINS,
    Argument("--vissl", VISSL, bool),
    JSON,
)


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(__name__)
    given = parser.parse_args(arguments)
    if given.vissl and given.kind:
        parser.error(f"name one list: --vissl, or one of {listing(KINDS)}")
    if not given.vissl and not given.kind:
        kinds = {name: kind.about for name, kind in KINDS.items()}
        print_document(kinds) if given.json else _print({**kinds, "--vissl": VISSL})
        return 0
    if given.vissl:
        rows = list(absent.rows())
        print_document(rows) if given.json else print("\n".join(map(": ".join, rows)))
        return 0
    load_plugins(given.plugins, "--plugin")
    names = list(KINDS[given.kind].names())
    of_libraries = given.kind == "models"
    if of_libraries and given.pattern:
        names = list(dict.fromkeys([*names, *names_of("timm"), *names_of("torchvision")]))
    if given.pattern:
        names = [name for name in names if fnmatch(name, given.pattern)]
    if given.json:
        print_document(names)
    elif given.kind == "methods":
        _print({name: about(name) for name in names})
    else:
        print("\n".join(names))
    if of_libraries and not given.json:
        print(_explain_models(len(names), given.pattern), file=sys.stderr)
    return 0


def _print(lines: Mapping[str, str]) -> None:
    """Print two columns; on a terminal the second is wrapped."""
    first = max(map(len, lines), default=0) + 2
    for name, text in lines.items():
        line = f"{name:{first}}{text}"
        print(fill(line, columns(sys.stdout) or len(line), subsequent_indent=" " * first))


def _explain_models(count: int, pattern: str | None) -> str:
    """Say which of them --model takes."""
    if pattern:
        return f"{count} networks for --model; of a name that both have timm's: torchvision:NAME"
    return (
        f"{count} trunks for --model, and {len(names_of('timm'))} networks of timm's, "
        f"{len(names_of('torchvision'))} of torchvision's: sslengine list models 'vit_small*'"
    )
