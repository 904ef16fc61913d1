"""Names that a config, or another verb, may have.

    sslengine list methods
    sslengine list models                 trunks that have their own names
    sslengine list models 'vit_*'         those, and any of timm's
    sslengine list transforms --json

Of torch.nn a config may name any loss too, of torchvision any transform and model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from fnmatch import fnmatch

from sslengine import catalog, registry
from sslengine.command.recipes import PHOTOS, SMALL, methods, methods_with_forms
from sslengine.config.compose import shipped_configs
from sslengine.export import FORMATS

assert catalog  # importing it declares all names


def _recipes() -> list[str]:
    root = shipped_configs()
    kinds = (PHOTOS, SMALL, "quickstart", "pretrain")
    found = (path for kind in kinds for path in sorted((root / kind).rglob("*.yaml")))
    files = (path.relative_to(root).with_suffix("").as_posix() for path in found)
    return [*methods_with_forms(), *files]


def _formats() -> list[str]:
    return [*FORMATS]


KINDS: dict[str, Callable[[], Sequence[str]]] = {
    "methods": methods,
    "models": lambda: registry.TRUNKS.names(),
    "recipes": _recipes,
    "transforms": lambda: registry.TRANSFORMS.names(),
    "train-steps": lambda: registry.TRAIN_STEPS.names(),
    "losses": lambda: registry.LOSSES.names(),
    "heads": lambda: registry.HEADS.names(),
    "hooks": lambda: registry.HOOKS.names(),
    "sources": lambda: registry.DATA_SOURCES.names(),
    "collators": lambda: registry.COLLATORS.names(),
    "schedulers": lambda: registry.SCHEDULERS.names(),
    "engines": lambda: registry.ENGINES.names(),
    "label-free": lambda: registry.LABEL_FREE.names(),
    "formats": _formats,
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine list", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("pattern", nargs="?", metavar="PATTERN", help="with * and ?, in quotes")
    parser.add_argument("--json", action="store_true")
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    names = list(KINDS[given.kind]())
    if given.kind == "models" and given.pattern:
        import timm  # and torch, for two seconds

        names += [name for name in timm.list_models() if name not in names]
    if given.pattern:
        names = [name for name in names if fnmatch(name, given.pattern)]
    if given.json:
        print(json.dumps(names))
        return 0
    print("\n".join(names))
    return 0
