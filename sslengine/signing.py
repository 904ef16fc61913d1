"""Sign what the engine writes into a run's folder, so that its own user needs no --trust-config.

The key is made at the first training, in `sslengine/key` of the user's config folder, which the
machines of a cluster share. `signature.json` in the run's folder has an HMAC-SHA256 of each config
that the engine wrote there; the manifest of a checkpoint, which has the hash of its content, has
its own. Nothing is signed while a config is open that is not the user's: see trust.py.

A signature holds for the content, not for the path: the folder may be moved, renamed and copied.
That is safe, because only what is signed gains trust. Somebody who was given a signed folder, and
gives it back, may have done this:

- changed the config, the signature, or a checkpoint with its manifest: no signature holds, and the
  folder is opened without trust. The same if a checkpoint is another run's: all signatures of a run
  include its random number. The bytes that are compared are the bytes that are parsed;
- added files. A signed config has the rights of one that the user types: it names code, and no
  other file of the folder does. Links out of it, catalogues and pickles are refused as in any
  folder. No YAML beside the config is read;
- added modules by the names that the config has. These are searched in the folder where the run
  was trained, whose path is signed, and not in the run's folder or the current one. That folder is
  the user's, so that its code may be edited;
- restored an older config or checkpoint of the same run: the user has signed that too.

Where there can be no key (a home that is missing, read-only or another user's) nothing is signed.
A key that others could read or replace, or that lies in the run's folder, is not used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sslengine.atomic import open_regular, write_json
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")

FILE = "signature.json"
_BYTES = 32  # of the key
_LARGEST = 2**24  # bytes of a manifest
# What a file that anyone may have written can raise when it is read.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def sign_config(path: Path, content: bytes) -> None:
    """Sign a config that the engine has written; make the user's key if there is none."""
    if not is_config_trusted():
        return
    try:
        folder, key = path.parent, _key(path.parent, make=True)
        run, configs = _signed(folder, key)
        run = run or secrets.token_hex(16)
        modules = os.path.realpath("") if not {"", os.getcwd()}.isdisjoint(sys.path) else ""
        signature = _mac(key, "config", run, path.name, modules, _hash(content))
        configs[path.name] = {"modules": modules, "signature": signature}
        stored = {"run": run, "signature": _mac(key, "run", run), "configs": configs}
        write_json(folder / FILE, stored)
    except OSError as error:
        log.debug("%s is not signed: %s", path, error)


def sign_manifest(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the signature of a checkpoint's manifest; "" if the run of the folder has none."""
    if is_config_trusted():
        with suppress(OSError):
            key = _key(folder)
            run, _ = _signed(folder, key)
            return _mac(key, "checkpoint", run, _plain(manifest)) if run else ""
    return ""


def modules_of_signed(path: Path, content: bytes) -> str | None:
    """Return the folder where the modules of a config are searched, "" for none; return None if
    the user has not signed the config and all checkpoints beside it.
    """
    with suppress(*_UNREADABLE):
        key = _key(path.parent)
        run, configs = _signed(path.parent, key)
        entry = configs[path.name]
        modules = entry["modules"]
        given = "config", run, path.name, modules, _hash(content)
        manifests = (path.parent / "checkpoints").glob("model_*.json")
        if _agrees(key, entry["signature"], *given) and all(
            _agrees(key, manifest["signature"], "checkpoint", run, _plain(manifest))
            for manifest in map(_read, manifests)
        ):
            return modules if _is_users(modules, path.parent) else ""
    return None


def _is_users(modules: str, folder: Path) -> bool:
    """Can nobody else have put files there? folder: of the run, which anyone may have changed."""
    with suppress(OSError):
        facts = os.stat(modules)
        private = facts.st_uid in (0, os.geteuid()) and not facts.st_mode & stat.S_IWOTH
        return private and os.path.realpath(modules) == modules and not _is_in(modules, folder)
    return False


def _signed(folder: Path, key: bytes) -> tuple[str, dict[str, Any]]:
    """Return the run's number, and the entries of its configs; "" and none if it is not signed."""
    with suppress(*_UNREADABLE):
        stored = _read(folder / FILE)
        if _agrees(key, stored["signature"], "run", stored["run"]):
            return stored["run"], {**stored["configs"]}
    return "", {}


def _read(path: Path) -> Any:
    with open(path, "rb", opener=open_regular) as file:
        return json.loads(file.read(_LARGEST))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _plain(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return it as it is read again, without its signature."""
    return {**json.loads(json.dumps(manifest)), "signature": ""}


def _mac(key: bytes, *facts: Any) -> str:
    return hmac.digest(key, json.dumps(facts, sort_keys=True).encode(), "sha256").hex()


def _agrees(key: bytes, signature: str, *facts: Any) -> bool:
    return hmac.compare_digest(signature, _mac(key, *facts))


def _key(run: Path, make: bool = False) -> bytes:
    """Return the user's key; OSError if there is none, or if others may know it.

    run: the folder of the run, which cannot bring its own key.
    """
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    home = chosen if os.path.isabs(chosen) else os.path.expanduser("~/.config")
    folder = Path(home, "sslengine")
    if not folder.is_absolute() or _is_in(folder, run):
        raise PermissionError(f"{folder} is no folder of the user's")
    path = folder / "key"
    if make and not os.path.lexists(path):
        _make_key(path)
    _expect_private(os.stat(folder), stat.S_IWGRP | stat.S_IWOTH, folder)
    with open(path, "rb", opener=open_regular) as file:
        _expect_private(os.fstat(file.fileno()), stat.S_IRWXG | stat.S_IRWXO, path)
        key = file.read()
    if len(key) != _BYTES:
        raise OSError(f"{path} is no key")
    return key


def _make_key(path: Path) -> None:
    """Make it complete under its name, which only the first of several processes gets."""
    there = next((each for each in path.parents[:2] if each.exists()), path.parents[2])
    _expect_private(there.stat(), 0, there)  # root does not make folders in a user's home
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".key") as file:
        file.write(secrets.token_bytes(_BYTES))
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)


def _expect_private(facts: os.stat_result, forbidden: int, path: Path) -> None:
    if facts.st_uid != os.geteuid() or facts.st_mode & forbidden:
        raise PermissionError(f"{path} is not the user's alone")


def _is_in(path: str | Path, folder: Path) -> bool:
    top = os.path.realpath(folder)
    return os.path.commonpath([top, os.path.realpath(path)]) == top
