"""An export's folder: written under a temporary name, proved, described, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sslengine.checkpoint.files import expect_space
from sslengine.checkpoint.snapshot import size_of
from sslengine.errors import OutputError, readable
from sslengine.export import manifest
from sslengine.export.formats import Made, prepare
from sslengine.export.manifest import YOURS
from sslengine.export.proof import prove
from sslengine.export.subject import Subject, make_subject
from sslengine.progress import progress
from sslengine.trained import Trained, find_trained
from sslengine.trust import closed


def export(
    source: str | Path,
    out: str | Path,
    to: str,
    network: str,
    overrides: Sequence[str],
    trust_config: bool,
    license: str,
    config: str,
) -> Path:
    """See `sslengine.export`."""
    place = Path(os.path.abspath(out))
    resolved, folder, checkpoint = find_trained(Path(source), overrides, trust_config, config)
    with closed(resolved.opened):
        with progress("loading the network", then="converting it"):
            subject = make_subject(Trained(resolved, folder, checkpoint, network))
        with progress(f"converting the network to {to}", then="writing and proving"):
            made = prepare(subject, to, license)
        write(subject, made, place, to, license, prove)
    return Path(out)


def write(
    subject: Subject, made: Made, out: Path, to: str, license: str, prove: Any
) -> dict[str, Any]:
    """The folder appears with its name when all is written and proved; returns the manifest.

    An export that is there stays until then, if it was not changed.
    """
    name, out = out.name, out.resolve()  # a link to a folder on another disk stays one
    unfinished = (out if _is_empty(out) else out.parent) / f".{name}.{os.getpid()}.tmp"
    unfinished.mkdir(parents=True)
    try:
        _expect_space(unfinished, subject, out)
        made.write(unfinished)
        proof = prove(made, unfinished, subject)
        content = {
            "format": to,
            **manifest.describe(subject),
            **made.facts,
            "proof": proof,
            "license": license or YOURS,
        }
        (unfinished / "README.md").write_text(readme(content, made, name))
        manifest.write(unfinished, content)
        for path in unfinished.iterdir():  # safetensors' files would be their owner's alone
            path.chmod((unfinished / "README.md").stat().st_mode)
        _put(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return content


def _expect_space(folder: Path, subject: Subject, out: Path) -> None:
    """For the weights. Each library has its own error for a disk that is full."""
    try:
        expect_space(folder, size_of(subject.trunk.state_dict()), "export to another disk")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error}.") from error


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _put(new: Path, out: Path) -> None:
    """Into an empty folder, or in the place of an earlier export, which is back if that fails."""
    if new.parent == out:  # it may be where the user is, or where a disk is mounted
        for path in sorted(new.iterdir(), key=lambda each: each.name == manifest.NAME):
            os.replace(path, out / path.name)
        return
    if not manifest.is_untouched(out):
        os.replace(new, out)
        return
    earlier = new.with_suffix(".old")
    os.replace(out, earlier)
    try:
        os.replace(new, out)
    except OSError:
        os.replace(earlier, out)
        raise
    shutil.rmtree(earlier)


def usage(made: Made, folder: Path | str) -> str:
    within_quotes = readable(str(folder).replace("\\", "\\\\").replace('"', '\\"'))
    return made.usage.replace("{folder}", within_quotes).rstrip()


def told(proof: Sequence[dict[str, Any]]) -> list[str]:
    """What was proved, in words, a line for each library."""
    return [_told(each) for each in proof]


def _told(proof: dict[str, Any]) -> str:
    whose = f" for {proof['library']}" if "library" in proof else ""
    if "not_proved" in proof:
        return f"not proved{whose}: {proof['not_proved']}"
    return (
        f"proved with {proof['library']} {proof['version']} in {proof['in']}: {proof['compared']}; "
        f"largest difference {proof['largest_difference']:.2g}"
    )


def readme(content: dict[str, Any], made: Made, name: str) -> str:
    """For whoever gets the folder; on a hub, its page."""
    license = content["license"]
    head = "other" if license == YOURS else license
    of = "" if content["network"] == "model" else f", {content['network']}"
    lines = [
        f"---\nlicense: {head}\ntags: [feature-extraction, self-supervised]\n---",
        f"# {readable(name)}",
        f"{content['trunk']}, trained by {content['method'] or 'its own losses'}{of}, written by "
        f"sslengine {content['sslengine']}. The output is the feature `{content['layer']}`, "
        f"{content['feature_dim']} numbers per image.",
        f"```python\n{usage(made, name)}\n```",
        *([f"Of an image:\n\n```python\n{made.example.rstrip()}\n```"] if made.example else []),
        *made.remarks,
        *told(content["proof"]),
        f"License: {license}",
        f"More in `{manifest.NAME}`.",
    ]
    return "\n\n".join(lines) + "\n"
