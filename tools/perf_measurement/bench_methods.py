#!/usr/bin/env python3
"""Time and memory of a step of methods with a teacher, beside the same step with lightly's parts.

    python tools/perf_measurement/bench_methods.py                  dino, ibot, dinov2, msn
    python tools/perf_measurement/bench_methods.py dinov2 --batch 32 --rounds 5

Each method's recipe of configs/photos with timm's vit_tiny_patch16_224 at 96 pixels, and one batch
of random pixels in memory. Beside it a loop in plain PyTorch with lightly's vision transformer,
heads, losses and teacher, as lightly's examples put them together: the same views, masks, sizes and
optimizer. The two take turns, and the median of the ratios of consecutive turns counts. Memory is
what a step needs at its peak, beside weights and the optimizer's state.

Needs lightly: pip install 'sslengine[bench]'.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config.resolve import resolve
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.launch.auto import settle_widths

MODEL, SIDE, SMALL_SIDE, PATCH = "vit_tiny_patch16_224", 96, 48, 16
SCORES, TURN = 4096, 3
Step = Callable[[], Any]


def recipe(method: str, batch: int) -> list[str]:
    """The recipe for photos at this size, without waiting for anything but the step."""
    values = {
        "MODEL.TRUNK.NAME": "timm",
        "MODEL.TRUNK.TIMM.model": MODEL,
        "MODEL.TRUNK.TIMM.arguments": f"{{img_size: {SIDE}, dynamic_img_size: true}}",
        "DATA.TRAIN.DATA_SOURCES": "[synthetic]",
        "DATA.TRAIN.RANDOM_SYNTHETIC_IMAGES": "true",
        "DATA.TRAIN.DEFAULT_GRAY_IMG_SIZE": 2 * SIDE,
        "DATA.TRAIN.DATA_LIMIT": 1000 * batch,
        "DATA.TRAIN.BATCHSIZE_PER_REPLICA": batch,
        "DATA.TRAIN.TRANSFORMS.0.size_crops": f"[{SIDE},{SMALL_SIDE}]",
        "DATA.NUM_DATALOADER_WORKERS": 0,
        "MACHINE.DEVICE": "cpu",
        "MACHINE.PRECISION": "fp32",
        "MODEL.CHANNELS_LAST": "false",
        "LOG_FREQUENCY": 1_000_000,
        "OPTIMIZER.num_iterations": 100_000,
    }
    if method == "dinov2":
        values["LOSS.dinov2_loss.targets"] = "center"  # lightly has no assignment for DINO
    heads = {"dino": [0], "ibot": [0], "dinov2": [0, 1]}.get(method, [])
    values |= {f"MODEL.HEAD.PARAMS.{number}.1.num_clusters": f"[{SCORES}]" for number in heads}
    return [f"config=photos/{method}", *(f"config.{key}={value}" for key, value in values.items())]


class Ours:
    def __init__(self, method: str, batch: int) -> None:
        config = settle_widths(resolve(recipe(method, batch))).config
        self.folder = tempfile.TemporaryDirectory(prefix="bench_methods_")
        self.task = SelfSupervisionTask(
            config, Path(self.folder.name), torch.device("cpu"), hooks=[], services=Services()
        )
        self.task.prepare()
        self.task.on_start()
        self.task.start_phase()
        self.task.on_phase_start()
        self.batch = self.task.state.next_batch()
        self.task.state.next_batch = lambda: self.batch  # type: ignore[method-assign]

    def step(self) -> None:
        self.task.step()

    def one(self, name: str) -> Tensor:
        """Of the batch, an input."""
        found: Tensor = self.batch[name][0]
        return found


class Theirs:
    """lightly's parts in a plain loop."""

    def __init__(self, ours: Ours, method: str) -> None:
        import timm
        from lightly.models.modules import MaskedVisionTransformerTIMM
        from lightly.models.utils import update_momentum

        self.method, self.batch, self.update_momentum = method, ours, update_momentum
        made = []
        for _ in range(2):  # weight norm cannot be copied
            network: Any = timm.create_model(
                MODEL, img_size=SIDE, dynamic_img_size=True, num_classes=0
            )
            backbone = MaskedVisionTransformerTIMM(vit=network)
            made.append(nn.ModuleDict({"backbone": backbone, **self._heads(network.embed_dim)}))
        self.student, self.teacher = made
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.compute = getattr(self, f"_{method}")
        inner = ours.task.parts.optimizer.inner
        self.losses = self._losses()
        self.prototypes = nn.Parameter(torch.randn(1024, 256))
        trained = [*self.student.parameters(), *([self.prototypes] if method == "msn" else [])]
        self.optimizer = type(inner)(trained, lr=1e-4, weight_decay=0.05, fused=True)

    def _heads(self, width: int) -> dict[str, nn.Module]:
        from lightly.models.modules.heads import DINOProjectionHead, MSNProjectionHead

        if self.method == "msn":
            return {"head": MSNProjectionHead(width, 2048, 256)}
        count = 2 if self.method == "dinov2" else 1
        names = ("head", "patch_head")[:count]
        return {name: DINOProjectionHead(width, 2048, 256, SCORES) for name in names}

    def _losses(self) -> dict[str, nn.Module]:
        from lightly.loss import DINOLoss, IBOTPatchLoss, KoLeoLoss, MSNLoss

        if self.method == "msn":
            return {"msn": MSNLoss(sinkhorn_iterations=3)}
        return {"dino": DINOLoss(SCORES), "ibot": IBOTPatchLoss(SCORES), "koleo": KoLeoLoss()}

    def step(self) -> None:
        loss = self.compute()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 3.0)
        self.optimizer.step()
        for name, module in self.student.items():
            self.update_momentum(module, self.teacher[name], 0.996)

    def _class(self, network: nn.ModuleDict, images: Tensor, **more: Tensor) -> Tensor:
        tokens: Tensor = network["backbone"].encode(images, **more)[:, 0]
        return tokens

    def _dino(self) -> Tensor:
        crops = self.batch.batch["data"][0]
        large, small = (
            (torch.cat(crops[:2]), torch.cat(crops[2:])) if isinstance(crops, list) else crops
        )
        with torch.no_grad():
            targets = self.teacher["head"](self._class(self.teacher, large)).chunk(2)
        head = self.student["head"]
        seen = [*head(self._class(self.student, large)).chunk(2),
                *head(self._class(self.student, small)).chunk(8)]  # fmt: skip
        loss: Tensor = self.losses["dino"](list(targets), seen)
        return loss

    def _ibot(self) -> Tensor:
        return self._with_patches(self.student["head"], self.teacher["head"])[0]

    def _dinov2(self) -> Tensor:
        heads = (each["patch_head"] for each in (self.student, self.teacher))
        loss, classes = self._with_patches(*heads)
        return loss + 0.1 * sum(self.losses["koleo"](view) for view in classes.chunk(2))

    def _with_patches(self, own: nn.Module, others: nn.Module) -> tuple[Tensor, Tensor]:
        large, small, mask = (
            self.batch.one(each) for each in ("global_views", "local_views", "mask")
        )
        hidden = F.pad(mask.flatten(1), (1, 0))  # the class token is never hidden
        with torch.no_grad():
            tokens = self.teacher["backbone"].encode(large)
            targets = self.teacher["head"](tokens[:, 0]).chunk(2)
            patch_targets = others(tokens[hidden])
        tokens = self.student["backbone"].encode(large, mask=hidden)
        classes, head = tokens[:, 0], self.student["head"]
        seen = [*head(classes).chunk(2), *head(self._class(self.student, small)).chunk(8)]
        loss = self.losses["dino"](list(targets), seen)
        return loss + self.losses["ibot"](patch_targets, own(tokens[hidden]), mask), classes

    def _msn(self) -> Tensor:
        names = ("target_views", "random_views", "focal_views", "shown")
        target, large, small, shown = (self.batch.one(each) for each in names)
        keep = F.pad(shown + 1, (1, 0))  # the class token is number 0
        with torch.no_grad():
            targets = self.teacher["head"](self._class(self.teacher, target))
        anchors = [
            self._class(self.student, large, idx_keep=keep),
            self._class(self.student, small),
        ]
        seen = torch.cat([self.student["head"](each) for each in anchors])
        loss: Tensor = self.losses["msn"](seen, targets, self.prototypes)
        return loss


METHODS = ("dino", "ibot", "dinov2", "msn")


def milliseconds(step: Step) -> float:
    began = time.perf_counter()
    for _ in range(TURN):
        step()
    return 1e3 * (time.perf_counter() - began) / TURN


def measured(method: str, given: argparse.Namespace) -> dict[str, Any]:
    ours = Ours(method, given.batch)
    steps = {"sslengine": ours.step, "lightly": Theirs(ours, method).step}
    for step in steps.values():
        milliseconds(step)
    rounds = [
        {name: milliseconds(step) for name, step in steps.items()} for _ in range(given.rounds)
    ]
    ratios = [each["lightly"] / each["sslengine"] for each in rounds]
    return {
        "ms": {name: statistics.median(each[name] for each in rounds) for name in steps},
        "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
        "mib": {name: added_mib(step) for name, step in steps.items()},
    }


def added_mib(step: Step) -> float:
    """The highest resident memory of the process during a step, above that before it (Linux)."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _kib("VmRSS")
    step()
    return (_kib("VmHWM") - before) / 1024


def _kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| method | sslengine ms | lightly ms | ratio | sslengine MiB | lightly MiB |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for method, found in results.items():
        ms, mib, (ratio, low, high) = found["ms"], found["mib"], found["ratio"]
        lines.append(
            f"| {method} | {ms['sslengine']:.0f} | {ms['lightly']:.0f} | {ratio:.2f} ({low:.2f} to "
            f"{high:.2f}) | {mib['sslengine']:.0f} | {mib['lightly']:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON")
    given = parser.parse_args(arguments)
    if given.out and given.out.exists():
        parser.error(f"--out {given.out}: it is there already. Give another name.")
    methods = given.methods or list(METHODS)
    if unknown := sorted(set(methods) - set(METHODS)):
        parser.error(f"unknown method {unknown[0]}; known: {', '.join(METHODS)}")
    torch.set_num_threads(given.threads)
    results = {method: measured(method, given) for method in methods}
    print(table(results))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
