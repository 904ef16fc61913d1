"""The ten tasks: inputs, commands as a user types them, and checks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MOST_COMMANDS = 9
# As small as a task can be.
SMALL = "--method simclr --model resnet18 --size 64 --batch-size 4 --epochs 1 --device cpu"
TRAIN = f"sslengine train photos {SMALL} --out runs/mine"
EMBED = "sslengine embed runs/mine photos --out photos.csv"
# What a machine without the extra `fast` has.
WITHOUT_NUMBA = "import sys\nfor name in ('numba', 'simplejpeg'):\n    sys.modules[name] = None\n"
BARE = "PYTHONPATH=bare${PYTHONPATH:+:$PYTHONPATH}"
TRAIN_IN_PYTHON = """import sslengine
sizes = dict(size=64, batch_size=4, epochs=1)
sslengine.train("photos", "simclr", "resnet18", device="cpu", out="runs/mine", **sizes)"""
EMBED_IN_PYTHON = """import pandas, sslengine
rows = sslengine.embed("runs/mine", "photos", device="cpu")
pandas.DataFrame(rows.features, index=rows.paths).to_csv("photos.csv", index_label="path")"""
COMPLETED = (
    "source completions/sslengine; COMP_WORDS=(sslengine train --me); COMP_CWORD=2; "
    'set -- $(complete -p sslengine); while [ "$1" != -F ]; do shift; done; "$2"; '
    'CHECK completes "${COMPREPLY[*]}"'
)
# docs/command.md, "Cleaning up": what may be outside of a run's folder, below $HOME and $TMPDIR.
CACHES = (".cache/sslengine/", ".cache/huggingface/", ".cache/Microsoft/")
TEMPORARY = ("torchinductor_", ".ses")


class Step(NamedTuple):
    line: str
    trains: bool = False
    commands: int = 1  # or statements


class Task(NamedTuple):
    name: str
    inputs: str
    steps: Sequence[Step]
    checks: Sequence[str] = ()
    looks: Sequence[Callable[[Any], None]] = ()


def _only_photos(user: Any) -> None:
    here = sorted(each.name for each in user.folder.iterdir())
    user.expect(here == ["photos"], f"left behind: {here}")


def _only_caches(user: Any) -> None:
    """Outside of the folder that the user is in."""
    for root, known in ((user.home, CACHES), (user.temporary, TEMPORARY)):
        found = [str(each.relative_to(root)) for each in root.rglob("*") if not each.is_dir()]
        odd = [each for each in found if not each.startswith(known)]
        user.expect(not odd, f"left behind in {root.name}: {odd}")
    folders = sorted(each.name for each in user.temporary.iterdir())
    odd = [each for each in folders if not each.startswith(TEMPORARY)]
    user.expect(not odd, f"left behind in tmp: {odd}")


def _python(lines: str) -> str:
    return f"python -c {shlex.quote(lines)}"


TASKS = {
    "photos": Task("photos to a data frame", "photos", [
        Step("sslengine doctor photos"), Step(TRAIN, trains=True), Step(EMBED),
        Step(_python("import pandas; assert len(pandas.read_csv('photos.csv')) == 16")),
    ], ["CHECK photos photos.csv runs/mine/weights"]),
    "python": Task("the same from Python", "photos", [
        Step(_python(TRAIN_IN_PYTHON), trains=True, commands=3),
        Step(_python(EMBED_IN_PYTHON), commands=3),
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
        Step(f"{BARE} sslengine report runs/mine"),
        Step(f"{BARE} sslengine embed runs/mine photos --out bare.csv"),
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
    ], ["CHECK onnx photos.csv out"], [_only_caches]),
    "completion": Task("completion in bash", "photos", [
        Step("mkdir completions"), Step("sslengine completion bash > completions/sslengine"),
    ], [COMPLETED]),
    "cleaning": Task("cleaning up", "photos", [
        Step(TRAIN, trains=True), Step(EMBED), Step("rm -r runs/mine/weights"),
        Step("sslengine embed runs/mine photos --out again.csv"),
        Step("cmp photos.csv again.csv"), Step("rm -r runs photos.csv again.csv"),
    ], looks=[_only_photos, _only_caches]),
}  # fmt: skip
