"""The ten tasks: inputs, commands as a user types them, and checks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MOST_COMMANDS = 9
# As small as a task can be.
SMALL = "--method simclr --model resnet18 --size 64 --batch-size 4 --epochs 1 --device cpu"
TRAIN = f"sslengine train photos {SMALL} --out runs/mine"
EMBED = "sslengine embed runs/mine photos --out photos.csv"
# What a machine without the extra `fast` has.
WITHOUT_NUMBA = "import sys\nfor name in ('numba', 'simplejpeg'):\n    sys.modules[name] = None\n"
FROM_PYTHON = """
import pandas, sslengine
run = sslengine.train("photos", "simclr", "resnet18", size=64, batch_size=4, epochs=1, device="cpu", out="runs/mine")
rows = run.embed("photos", device="cpu")
frame = pandas.DataFrame(rows.features, index=rows.paths)
frame.to_csv("photos.csv", index_label="path")
"""
COMPLETED = (
    "source completions/sslengine; COMP_WORDS=(sslengine train --me); COMP_CWORD=2; "
    'set -- $(complete -p sslengine); while [ "$1" != -F ]; do shift; done; "$2"; '
    'CHECK completes "${COMPREPLY[*]}"'
)
# docs/command.md, "Cleaning up": what may be outside of a run's folder.
CACHES = (".cache/sslengine", ".cache/huggingface")


class Step(NamedTuple):
    line: str
    trains: bool = False
    count: int = 1  # of commands or statements
    environment: Mapping[str, str] = {}


class Task(NamedTuple):
    name: str
    inputs: str
    steps: Sequence[Step]
    checks: Sequence[str] = ()
    looks: Sequence[Callable[[Any], None]] = ()


def _cleaned(user: Any) -> None:
    """Nothing is left but the photos, and the caches that are documented."""
    here = sorted(each.name for each in user.folder.iterdir())
    user.expect(here == ["photos"], f"left behind: {here}")
    files = [each.relative_to(user.home) for each in user.home.rglob("*") if each.is_file()]
    odd = [str(each) for each in files if not str(each).startswith(CACHES)]
    user.expect(not odd, f"left behind in the home folder: {odd}")
    kept = sorted(each.name for each in user.temporary.iterdir())
    user.expect(not kept, f"left behind in $TMPDIR: {kept}")


def _python(lines: str) -> str:
    return f"python -c {shlex.quote(lines)}"


TASKS = {
    "photos": Task("photos to a data frame", "photos", [
        Step("sslengine doctor photos"), Step(TRAIN, trains=True), Step(EMBED),
        Step(_python("import pandas; assert len(pandas.read_csv('photos.csv')) == 16")),
    ], ["CHECK photos photos.csv runs/mine/weights"]),
    "python": Task("the same from Python", "photos", [
        Step(_python(FROM_PYTHON), trains=True, count=len(FROM_PYTHON.split("\n")) - 2),
    ], ["CHECK photos photos.csv runs/mine/weights"]),
    "timm": Task("DINO continues timm's ViT-S", "timm_weights", [
        Step("sslengine train photos --recipe dino/continued --model vit_small_patch16_224 "
             "--weights vits.safetensors --size 64 --batch-size 4 --epochs 1 --device cpu "
             "--out runs/mine", trains=True),
        Step(EMBED),
    ], ["CHECK continued runs/mine/weights", "CHECK photos photos.csv runs/mine/weights"]),
    "vissl": Task("VISSL's checkpoint to timm", "vissl_checkpoint", [
        Step("sslengine export model_final.torch resnet50 --config "
             "pretrain/simclr/simclr_64gpu_resnet50"),
    ], ["CHECK vissl resnet50"]),
    "numba": Task("a run of numba's, without numba", "photos", [
        Step(TRAIN, trains=True), Step(EMBED),
        Step("mkdir bare"), Step(f"printf %s {shlex.quote(WITHOUT_NUMBA)} > bare/sitecustomize.py"),
        Step("sslengine report runs/mine", environment={"PYTHONPATH": "bare"}),
        Step("sslengine embed runs/mine photos --out bare.csv", environment={"PYTHONPATH": "bare"}),
    ], ["CHECK same_rows bare.csv photos.csv", "CHECK photos bare.csv runs/mine/weights"]),
    "bands": Task("TIFFs of 4 bands", "bands", [
        Step("sslengine doctor bands"),
        Step(f"sslengine train bands {SMALL} --out runs/mine", trains=True),
        Step("sslengine embed runs/mine bands --out bands.csv"),
    ], ["CHECK bands bands.csv runs/mine/weights"]),
    "parquet": Task("parquet of a hub", "parquet", [
        Step("sslengine doctor hub.parquet"),
        Step(f"sslengine train hub.parquet {SMALL} --out runs/mine", trains=True),
        Step("sslengine embed runs/mine hub.parquet --out hub.csv"),
    ], ["CHECK parquet hub.csv runs/mine/weights"]),
    "onnx": Task("ONNX in onnxruntime", "photos", [
        Step(TRAIN, trains=True), Step(EMBED), Step("sslengine export runs/mine out --to onnx"),
    ], ["CHECK onnx photos.csv out"]),
    "completion": Task("completion in bash", "photos", [
        Step("mkdir completions"), Step("sslengine completion bash > completions/sslengine"),
    ], [COMPLETED]),
    "cleaning": Task("cleaning up", "photos", [
        Step(TRAIN, trains=True), Step(EMBED), Step("rm -r runs/mine/weights"),
        Step("sslengine embed runs/mine photos --out again.csv"),
        Step("cmp photos.csv again.csv"), Step("rm -r runs photos.csv again.csv"),
    ], looks=[_cleaned]),
}  # fmt: skip
