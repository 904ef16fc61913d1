"""Make the pictures of README.md again: the page of a run, a terminal, the map before and after.

    python tools/readme_pictures.py              into docs/pictures/

It trains SimCLR for 2,400 steps on 2,000 photographs of Fashion-MNIST (Debian's package
dataset-fashion-mnist), judges it on 500 others, and writes its page with the map: half an hour on
two cores. The page and the terminal are photographed by chromium.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "ankle-boot")  # fmt: skip
COLOURS = ("#0b6fb8", "#3a2b96", "#00897b", "#cc2f78", "#d9690f", "#84841c", "#9b3f9b", "#147238",
           "#7a5347", "#c32a10")  # fmt: skip
STEPS, COLUMNS, LARGEST = 2400, 96, 300_000  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--work", type=Path, help="keep images and runs here")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or not FASHION.is_dir():
        sys.exit("it needs chromium, and Debian's dataset-fashion-mnist")
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        PICTURES.mkdir(exist_ok=True)
        write_images(work / "fashion")
        shown = [run(work, command) for command in commands()]
        photograph(chromium, work / "runs/fashion/report.html", "report", (1400, 1060))
        write_terminal(chromium, work, shown)
        draw_maps(work / "runs/fashion/report/parts.json")
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e3:.0f} kB")


def commands() -> list[str]:
    return [
        f"sslengine train fashion/train --recipe simclr/cpu --precision fp32 "
        f"--set OPTIMIZER.num_iterations={STEPS} --out runs/fashion",
        "sslengine judge runs/fashion --train fashion/train --val fashion/val",
        "sslengine report runs/fashion --map",
    ]


def write_images(folder: Path) -> None:
    """Write a share of the photographs as a folder of images a class."""
    for split, file, count in (("train", "train", 2000), ("val", "t10k", 500)):
        with gzip.open(FASHION / f"{file}-images-idx3-ubyte.gz") as stream:
            images = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 28, 28)
        with gzip.open(FASHION / f"{file}-labels-idx1-ubyte.gz") as stream:
            labels = np.frombuffer(stream.read(), np.uint8, offset=8)
        for number in range(count):
            place = folder / split / CLASSES[labels[number]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).save(place / f"{number:05d}.png")


def run(folder: Path, command: str) -> str:
    """Run a command in a terminal of COLUMNS columns; return what stays on its screen."""
    print(f"$ {command}", flush=True)
    main_end, end = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "60"], stdin=end, check=True)
    process = subprocess.Popen(
        command, shell=True, cwd=folder, stdin=end, stdout=end, stderr=end, env=environment
    )
    os.close(end)
    said = b""
    try:
        while some := os.read(main_end, 65536):
            said += some
    except OSError:  # the other end is closed
        pass
    if process.wait():
        sys.exit(said.decode(errors="replace"))
    return lasting(said.decode(errors="replace"))


def lasting(text: str) -> str:
    """Leave out lines that a bar has drawn over."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        parts = line.split("\x1b[1A\x1b[2K")
        del lines[len(lines) - min(len(lines), len(parts) - 1) :]
        lines.append(parts[-1].rpartition("\r\x1b[2K")[2].rpartition("\r")[2])
    return "\n".join(lines)


def photograph(chromium: str, page: Path, name: str, size: tuple[int, int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.png")
        subprocess.run(
            [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu",
             "--virtual-time-budget=4000", f"--window-size={size[0]},{size[1]}",
             f"--screenshot={file}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        with Image.open(file, formats=["PNG"]) as image:
            save(image.convert("RGB"), name)


def write_terminal(chromium: str, work: Path, shown: Sequence[str]) -> None:
    """Draw the end of the training and the sentence of its judgement."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    for command, text in zip(commands()[:2], shown):
        console.print(Text(f"$ {command}", style="bold"))
        lines = [each for each in text.splitlines() if each.strip()]
        for line in [*lines[:6], *lines[-14:]] if len(lines) > 20 else lines:
            console.print(Text.from_ansi(line))
    body = console.export_html(
        inline_styles=True,
        code_format='<body style="margin:28px;background:#fbfbf9"><pre style="font:15px/1.45 '
        'DejaVu Sans Mono,monospace;color:#17191c">{code}</pre></body>',
    )
    page = work / "terminal.html"
    page.write_text(body, encoding="utf-8")
    photograph(chromium, page, "terminal", (960, 22 * body.count("\n") + 40))


def draw_maps(parts: Path) -> None:
    """Draw the images where the untrained and the trained network have them, side by side."""
    made = json.loads(parts.read_text())["images"]["made"]
    labels = made["thumbs"]["labels"]
    places = [made["map"]["drawn"]["places"][name] for name in ("untrained", "trained")]
    side, gap = 640, 40
    canvas = Image.new("RGB", (2 * side + gap, side + 40), "white")
    draw = ImageDraw.Draw(canvas)
    for column, (name, where) in enumerate(zip(("untrained", "trained"), places)):
        left = column * (side + gap)
        draw.text((left + 8, 8), name, fill="#17191c", font_size=20)
        for (x, y), label in zip(where, labels):
            spot = left + 10 + x * (side - 20), 50 + y * (side - 20)
            draw.ellipse((spot[0] - 4, spot[1] - 4, spot[0] + 4, spot[1] + 4),
                         fill=COLOURS[label % len(COLOURS)])  # fmt: skip
    save(canvas, "map")


def save(image: Image.Image, name: str) -> None:
    """Write it as WebP, as good as fits below LARGEST."""
    for quality in (90, 80, 70, 60, 45):
        image.save(PICTURES / f"{name}.webp", quality=quality, method=6)
        if (PICTURES / f"{name}.webp").stat().st_size < LARGEST:
            return
    sys.exit(f"{name}.webp is too large")


if __name__ == "__main__":
    main()
