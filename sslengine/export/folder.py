"""An export's folder: written under a temporary name, proved, described, then renamed.

manifest.json says what the weights are, where they come from, and what was proved.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import sslengine
from sslengine.checkpoint.files import expect_space
from sslengine.checkpoint.manifest import read_manifest, sha256_of
from sslengine.checkpoint.snapshot import size_of
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.fingerprint import identify
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.errors import OutputError, SSLEngineError, readable
from sslengine.export.formats import Made, prepare, prove
from sslengine.export.subject import Subject, make_subject
from sslengine.losses.options import LossOptions
from sslengine.models.weights.read import list_files
from sslengine.progress import progress
from sslengine.trained import Trained, find_trained
from sslengine.trust import closed

MANIFEST = "manifest.json"
LIBRARIES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "onnxruntime")
YOURS = (
    "yours: sslengine claims nothing of the weights that you train with it. The licences of your "
    "images, and of weights that training started from, still apply."
)


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
    """Write and prove an export; return its manifest. Then the folder appears with its name.

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
            **describe(subject),
            **made.facts,
            "proof": proof,
            "license": license or YOURS,
        }
        (unfinished / "README.md").write_text(readme(content, made, name))
        write_manifest(unfinished, content)
        for path in unfinished.iterdir():  # safetensors' files would be their owner's alone
            path.chmod((unfinished / "README.md").stat().st_mode)
        _put(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return content


def _expect_space(folder: Path, subject: Subject, out: Path) -> None:
    """Check for the weights' size: each library has its own error for a disk that is full."""
    try:
        expect_space(folder, size_of(subject.trunk.state_dict()), "export to another disk")
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error}.") from error


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _put(new: Path, out: Path) -> None:
    """Move it into an empty folder, or replace an earlier export, which stays if that fails."""
    if new.parent == out:  # it may be where the user is, or where a disk is mounted
        for path in sorted(new.iterdir(), key=lambda each: each.name == MANIFEST):
            os.replace(path, out / path.name)
        return
    if not is_untouched(out):
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


def _say_proved(proof: dict[str, Any]) -> str:
    whose = f" for {proof['library']}" if "library" in proof else ""
    if "not_proved" in proof:
        return f"not proved{whose}: {proof['not_proved']}"
    return (
        f"proved with {proof['library']} {proof['version']} in {proof['in']}: {proof['compared']}; "
        f"largest difference {proof['largest_difference']:.2g}"
    )


def readme(content: dict[str, Any], made: Made, name: str) -> str:
    """Write the page of the folder, which a hub shows."""
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
        *map(_say_proved, content["proof"]),
        f"License: {license}",
        f"More in `{MANIFEST}`.",
    ]
    return "\n\n".join(lines) + "\n"


# ---- manifest.json


def describe(subject: Subject) -> dict[str, Any]:
    """Describe the trunk, in any format."""
    trunk, options = subject.trunk, subject.options
    library = options.TRUNK.library()
    return {
        "sslengine": sslengine.__version__,
        "trunk": options.TRUNK.NAME if library is None else library.model,
        "layer": subject.layer,
        "feature_dim": subject.features.shape[1],
        "parameters": sum(each.numel() for each in trunk.parameters()),
        "network": subject.network,
        "method": read(subject.config, LossOptions).name,
        "view": asdict(subject.preprocessing),
        "transparent": subject.image_options.TRANSPARENT,
        "started_from": _started_from(subject),
        **(
            _describe_run(subject, subject.run_folder)
            if subject.run_folder
            else _describe_file(subject.checkpoint)
        ),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def _started_from(subject: Subject) -> str:
    """Name what training started from, without its path, which may be private."""
    options, library = subject.options, subject.options.TRUNK.library()
    if options.WEIGHTS_INIT.PARAMS_FILE:
        return Path(options.WEIGHTS_INIT.PARAMS_FILE).name
    if library is not None and library.pretrained:
        return f"{library.library}'s weights of {library.model}"
    return "random weights"


def _describe_file(file: Path) -> dict[str, Any]:
    """Describe a file of another program: its data and its training are not known."""
    found = {
        str(each.relative_to(file.parent)): sha256_of(each) for each in sorted(list_files(file))
    }
    if len(found) > 1:
        return {"checkpoint": {"file": file.name, "files": found}}
    ((name, digest),) = found.items()
    return {"checkpoint": {"file": name, "sha256": digest}}


def _describe_run(subject: Subject, folder: Path) -> dict[str, Any]:
    found = read_manifest(subject.checkpoint)
    return {
        "run": folder.resolve().name,
        "checkpoint": {
            "file": found.file,
            "sha256": found.sha256,
            "iteration": found.iteration,
        },
        "config_sha256": found.config,
        "results": found.results,
        "data": _fingerprint(subject),
        "evaluation": _evaluation(folder),
    }


def _fingerprint(subject: Subject) -> dict[str, Any]:
    """Identify the images that were trained on, by what is below what DATA_PATHS names."""
    data, seed = read(subject.config, DataOptions), read(subject.config, RunOptions).SEED_VALUE
    try:
        dataset = SSLDataset(data.TRAIN, "TRAIN", seed, hold_out=data.HOLD_OUT)
        return identify(dataset, data.TRAIN.DATA_PATHS)
    except (SSLEngineError, OSError) as error:
        return {"fingerprint": None, "why": f"the images cannot be listed here: {error}"}


def _evaluation(run_folder: Path) -> Any:
    try:
        return json.loads((run_folder / "evaluation.json").read_bytes())
    except (OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def files_in(folder: Path) -> dict[str, dict[str, Any]]:
    """List all files of an export but the manifest itself."""
    paths = sorted(each for each in folder.iterdir() if each.name != MANIFEST)
    return {each.name: {"bytes": each.stat().st_size, "sha256": sha256_of(each)} for each in paths}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    whole = {**content, "files": files_in(folder)}
    (folder / MANIFEST).write_text(json.dumps(whole, indent=2) + "\n")


def checkpoint_of(folder: Path) -> str | None:
    """Read the SHA-256 of the checkpoint whose weights an export holds; None without one."""
    try:
        found = json.loads((folder / MANIFEST).read_bytes())["checkpoint"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def is_untouched(folder: Path) -> bool:
    """Say whether the folder holds an export to which nothing was changed or added."""
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        return bool(files_in(folder) == listed)
    except (OSError, ValueError, KeyError, TypeError):
        return False
