"""Sign what the engine writes into a run's folder, so that its own user needs no --trust-config.

A key is made at the first training, in the user's config folder, which the machines of a cluster
share. `signature.json` in the run's folder has an HMAC-SHA256 of each config that the engine wrote
there; the manifest of a checkpoint, which has the hash of its content, has one too. Nothing is
signed while a config is open that is not the user's: see trust.py.

The content is signed and not the path: the folder may be moved and copied. Nothing gains trust but
what is signed. Somebody who gives a signed folder back may have

- changed the config, the signature or a checkpoint, or taken one from another run, whose signatures
  have another random number: the folder is opened without trust. The bytes that are compared are
  those that are parsed;
- added files: only a signed config may name code. Links, pickles and catalogues are refused as in
  any folder, and no YAML next to the config is read;
- added modules by the names that the config has: these are searched where the run was trained, a
  folder that is signed too and that only the user may have written to, and nowhere else;
- restored an older config or checkpoint of this run: the user has signed that too.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sslengine.atomic import open_no_link, write_json, write_whole
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")

FILE = "signature.json"
_BYTES = 32  # of the key
# What a file that anyone may have written can raise when it is read.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)


def write_signed(path: Path, content: bytes, code: Iterable[Path] = ()) -> None:
    """Write a config of a run, and sign it; make the user's key if there is none.

    code: files that it names. One in the run's folder is not signed: whoever has that may edit it.
    """
    write_whole(path, content)
    if not is_config_trusted() or any(_is_in(each, path.parent) for each in code):
        return
    try:
        key, (run, configs) = _key(path.parent, make=True), _signatures(path.parent)
        run = run or secrets.token_hex(16)
        modules = os.path.realpath("") if not {"", os.getcwd()}.isdisjoint(sys.path) else ""
        signature = _mac(key, "config", run, path.name, modules, content)
        configs[path.name] = modules, signature
        write_json(path.parent / FILE, {"run": run, "configs": configs})
    except OSError as error:
        log.debug("%s is not signed: %s", path, error)


def sign_manifest(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the signature of a checkpoint's manifest; "" if the run of the folder has none."""
    with suppress(OSError):
        key, (run, _) = _key(folder), _signatures(folder)
        if run and is_config_trusted():
            return _mac(key, "checkpoint", run, _plain(manifest))
    return ""


def modules_of_signed(path: Path, content: bytes) -> str | None:
    """Return the folder where a config's modules are searched, "" for none; None: the user has not
    signed the config and all checkpoints of its folder.
    """
    with suppress(*_UNREADABLE):
        key, (run, configs) = _key(path.parent), _signatures(path.parent)
        modules, signature = configs[path.name]
        manifests = map(_read, (path.parent / "checkpoints").glob("model_*.json"))
        if _agrees(key, signature, "config", run, path.name, modules, content) and all(
            _agrees(key, each["signature"], "checkpoint", run, _plain(each)) for each in manifests
        ):
            return str(modules) if _is_users(modules, path.parent) else ""
    return None


def _is_users(modules: str, folder: Path) -> bool:
    """Tell whether only the user may write there; not in `folder`, which may be anyone's."""
    with suppress(OSError):
        facts = os.stat(modules)
        private = facts.st_uid in (0, os.geteuid()) and not facts.st_mode & stat.S_IWOTH
        return private and os.path.realpath(modules) == modules and not _is_in(modules, folder)
    return False


def _signatures(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the run's number, and of each config what was signed with it; "" and none of none."""
    with suppress(*_UNREADABLE):
        stored = _read(folder / FILE)
        return str(stored["run"]), {**stored["configs"]}
    return "", {}


def _read(path: Path) -> Any:
    with open(path, "rb", opener=open_no_link) as file:
        return json.load(file)


def _plain(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return it as it is read again, without its signature."""
    return {**json.loads(json.dumps(manifest)), "signature": ""}


def _mac(key: bytes, *facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True, default=bytes.hex)
    return hmac.digest(key, text.encode(), "sha256").hex()


def _agrees(key: bytes, signature: str, *facts: Any) -> bool:
    return hmac.compare_digest(signature, _mac(key, *facts))


def _key(run: Path, make: bool = False) -> bytes:
    """Return the user's key; OSError if there is none that others can neither read nor bring."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    home = chosen if os.path.isabs(chosen) else os.path.expanduser("~/.config")
    path = Path(home, "sslengine", "key")
    if not path.is_absolute() or _is_in(path.parent, run):
        raise PermissionError(f"{path} may be anyone's")
    if make and not os.path.lexists(path):
        _make_key(path)
    with open(path, "rb", opener=open_no_link) as file:
        _expect_private(os.stat(path.parent), 0o022, path.parent)
        _expect_private(os.fstat(file.fileno()), 0o077, path)
        key = file.read()
    if len(key) != _BYTES:
        raise PermissionError(f"{path} is no key")
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
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
