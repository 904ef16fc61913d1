#!/usr/bin/env python3
"""Images a second of a whole SimCLR run, beside lightly's transforms and loss in Lightning.

    python tools/perf_measurement/bench_end_to_end.py                      48 px, PNG files
    python tools/perf_measurement/bench_end_to_end.py --case jpeg224       224 px from 500x375 JPEGs

Both train on the same files, with the same network, views, batch, number of loader workers and
threads: a ResNet-10 of a quarter of the width and a projection of two layers. Each is configured
as its users have it: lightly's SimCLRTransform, NTXentLoss and a Trainer without checkpoints and
logger; our quickstart with its checkpoints, metrics and hooks, channels-last as it sets it, and
the `fast` extra. `--precision bf16` trains both under autocast.

They take turns, each in processes of its own. The first epoch (start-up, compiling, caches) is not
counted. Needs `pip install 'sslengine[bench]'`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness
from harness import Times

BATCH, TEMPERATURE, RATE = 128, 0.1, 2e-3
HEAD = (128, 128)
# Side of a view, the smallest share of the image in it, blurred or not, and files.
CASES = {"shapes48": (48, 0.5, False, 10_000), "jpeg224": (224, 0.08, True, 1_024)}


def write_files(case: str, count: int, folder: Path) -> None:
    if case == "jpeg224":
        harness.write_images(folder, harness.make_images(64), count)
        return
    from sslengine.data.sources.generated import draw_shape

    inner = folder / "images"
    inner.mkdir()
    for number in range(count):
        Image.fromarray(draw_shape("TRAIN", number, 48)).save(inner / f"{number:06}.png")


# ---- the contestants: each trains for so many epochs and returns when each of them ended


def sslengine(folder: Path, given: argparse.Namespace) -> list[float]:
    from classy_vision.hooks import ClassyHook

    from sslengine.launch import cli

    ends: list[float] = []

    class EpochEnds(ClassyHook):
        on_start = on_phase_start = on_forward = on_loss_and_meter = ClassyHook._noop
        on_backward = on_step = on_end = ClassyHook._noop

        def on_phase_end(self, task: Any) -> None:
            ends.append(time.perf_counter())

    sys.modules["epoch_ends"] = sys.modules[__name__]
    globals()["EpochEnds"] = EpochEnds
    with tempfile.TemporaryDirectory() as run:
        cli.main([*config_of(folder, given), f"config.CHECKPOINT.DIR={run}"])
    return ends


def config_of(folder: Path, given: argparse.Namespace) -> list[str]:
    """The quickstart, on the files."""
    from sslengine.config.compose import overrides

    side, crop, blur, _ = CASES[given.case]
    transforms: list[dict[str, Any]] = [
        {"name": "ImgReplicatePil", "num_times": 2},
        {"name": "RandomResizedCrop", "size": side, "scale": [crop, 1.0]},
        {"name": "RandomHorizontalFlip", "p": 0.5},
        {"name": "ImgPilColorDistortion", "strength": 1.0},
        *([{"name": "ImgPilGaussianBlur", "p": 0.5}] if blur else ()),
        {"name": "ToTensor"},
        {"name": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    ]
    precision = {"USE_AMP": given.precision == "bf16", "AMP_TYPE": "pytorch"}
    values = {
        "DATA.TRAIN.DATA_SOURCES": ["disk_folder"],
        "DATA.TRAIN.DATA_PATHS": [str(folder)],
        "DATA.TRAIN.DATA_LIMIT": -1,
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": BATCH,
        "DATA.TRAIN.TRANSFORMS": transforms,
        "DATA.NUM_DATALOADER_WORKERS": given.workers,
        "OPTIMIZER.num_epochs": given.epochs,
        "MODEL.AMP_PARAMS": {**precision, "AMP_DTYPE": "bfloat16"},
        "HOOKS.EXTRA": ["epoch_ends:EpochEnds"],
    }
    return ["config=quickstart/simclr", *overrides(values)]


def lightly(folder: Path, given: argparse.Namespace) -> list[float]:
    import lightning
    import plain_train
    import torch
    from lightly.data import LightlyDataset
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    ends: list[float] = []

    class SimCLR(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain_train.make_model(head=HEAD)
            self.model.to(memory_format=torch.contiguous_format)
            self.criterion = NTXentLoss(temperature=TEMPERATURE)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            first, second = batch[0]
            return self.criterion(self.model(first), self.model(second))

        def on_train_epoch_end(self) -> None:
            ends.append(time.perf_counter())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=1e-4)

    side, crop, blur, _ = CASES[given.case]
    views = SimCLRTransform(input_size=side, min_scale=crop, gaussian_blur=0.5 if blur else 0.0)
    loader = torch.utils.data.DataLoader(
        LightlyDataset(str(folder), transform=views), batch_size=BATCH, shuffle=True,
        drop_last=True, num_workers=given.workers, persistent_workers=given.workers > 0,
    )  # fmt: skip
    trainer = lightning.Trainer(
        max_epochs=given.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        precision="bf16-mixed" if given.precision == "bf16" else "32-true",
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(SimCLR(), loader)
    return ends


CONTESTANTS = {"sslengine": sslengine, "lightly": lightly}


def main(arguments: list[str] | None = None) -> Times:
    parser = harness.parser(__doc__)
    parser.add_argument("--case", choices=CASES, default="shapes48")
    parser.add_argument("--images", type=int, help="files; by default as the case has them")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of the model")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=list(CONTESTANTS))
    parser.add_argument("--row", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    given.images = given.images or CASES[given.case][-1]
    if given.row:
        ends = CONTESTANTS[given.row](given.folder, given)
        images = (given.images // BATCH) * BATCH * (len(ends) - 1)
        print(json.dumps({"rate": images / (ends[-1] - ends[0])}))
        return {}
    print(harness.machine(), flush=True)

    def measure(name: str) -> float:
        words = [*(sys.argv[1:] if arguments is None else arguments), "--folder", folder]
        rate = harness.child(__file__, words, name, given.threads)["rate"]
        print(f"{name:10} {rate:8.0f} images/s", flush=True)
        return rate

    with tempfile.TemporaryDirectory() as folder:
        write_files(given.case, given.images, Path(folder))
        named = {name: lambda number, name=name: measure(name) for name in given.only}  # type: ignore[misc]
        rates = harness.take_turns(named, given.rounds)
    for name, each in rates.items():
        middle = statistics.median(each)
        print(f"{name:10} {middle:8.0f} images/s ({min(each):.0f} to {max(each):.0f})")
    if len(rates) > 1:
        first, second = (statistics.median(each) for each in rates.values())
        print(f"ratio {first / second:.2f}")
    return rates


if __name__ == "__main__":
    main()
