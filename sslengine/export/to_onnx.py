"""`--to onnx`: model.onnx takes normalised images.

model_uint8.onnx takes bytes and normalises them; after training on images of more than 8 bits it is
model_values.onnx, which takes the values of the files.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from sslengine.errors import ExportError
from sslengine.export import expect_packages
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import eight_bits_code, opening, pixel_range, view_code
from sslengine.export.subject import IMAGES, UNKNOWN, Subject
from sslengine.export.to_pt2 import PixelFeatures, hide_attempts, trace, trace_subject
from sslengine.models.weights.read import first_line

TOLERANCE = 1e-4
# Of one file; protocol buffers end at two gigabytes.
_LARGEST = 1.8e9

LOAD = """import onnxruntime
model = onnxruntime.InferenceSession("{folder}/model.onnx")
"""
RUN = """(features,) = model.run(["features"], {"images": images})"""
_NORMALISED = "# images: float32 N x {} x {} x {}, normalised: `view` of manifest.json\n"


@dataclass(frozen=True)
class Pixels:
    """A second file, which takes images that are resized and cropped, and normalises them."""

    file: str
    fact: str
    words: str
    white: int  # the value that is 1 for mean and std

    @property
    def load(self) -> str:
        return LOAD.replace("model.onnx", self.file)


BYTES = Pixels("model_uint8.onnx", "input_uint8", "bytes", 255)
# Of images of more than 8 bits.
VALUES = Pixels("model_values.onnx", "input_values", "values of the files", 1)


def prepare(subject: Subject, license: str) -> Made:
    expect_packages("onnx")
    program, free = trace_subject(subject)
    made = Made(
        partial(_write, {"model.onnx": program}),
        usage=LOAD + _NORMALISED.format(*subject.images.shape[1:]),
        proofs=(_proof(LOAD),),
        facts={"input": f"float32 {list(subject.images.shape)}, normalised", "any_length": free},
        remarks=(f"Axes of any length: {free}.",),
    )
    if why := subject.preprocessing.besides or ("" if subject.has_bytes is not None else UNKNOWN):
        told = f"There is no file that normalises images itself: {why}."
        facts = {**made.facts, "no_input_of_pixels": why}
        return replace(made, facts=facts, remarks=(*made.remarks, told))
    return _add_pixels(subject, BYTES if subject.has_bytes else VALUES, program, made)


def _add_pixels(subject: Subject, kind: Pixels, program: ExportedProgram, made: Made) -> Made:
    given, images = subject.preprocessing, _pixels(subject, kind)
    network = PixelFeatures(subject.trunk, given.mean, given.std, kind.white)
    second, _ = trace(network, images, (1, 2))
    proof = replace(
        _proof(kind.load),
        given=images.numpy(),
        expected=network(images).detach().numpy(),
        compared=f"features of {IMAGES} images of {kind.words}",
    )
    dtype = str(images.dtype).removeprefix("torch.")
    shape = "N x {} x {} x {}".format(*subject.images.shape[1:])
    told = f"`model.onnx` takes images that are normalised: float32 {shape}."
    return replace(
        made,
        write=partial(_write, {"model.onnx": program, kind.file: second}),
        usage=eight_bits_code(subject) + view_code(subject, f"{dtype}: {kind.words}") + kind.load,
        example=opening(subject) + RUN.replace("images}", "view(image)[None]}"),
        proofs=(*made.proofs, proof),
        facts={
            **made.facts,
            kind.fact: f"{dtype} {list(images.shape)}, {_say_input(subject)}",
        },
        remarks=(told, *made.remarks),
    )


def _say_input(subject: Subject) -> str:
    """Say what is done to an image first."""
    range = subject.image_options.PIXEL_RANGE if pixel_range(subject) else None
    brought = "" if range is None else f"brought to 8 bits by PIXEL_RANGE {range}, "
    return f"{brought}resized and cropped"


def _proof(load: str) -> Proof:
    return Proof("onnxruntime", load, RUN, tolerance=TOLERANCE, torch=False)


def _pixels(subject: Subject, kind: Pixels) -> torch.Tensor:
    """Images of the view's size, before they are normalised."""
    count, channels, height, width = subject.images.shape
    generator = torch.Generator().manual_seed(0)
    shape = (count, height, width, channels)
    if kind is BYTES:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    given = subject.preprocessing
    normal = torch.randn(shape, generator=generator)
    return normal * torch.tensor(given.std) + torch.tensor(given.mean)


def _write(programs: dict[str, ExportedProgram], folder: Path) -> None:
    for name, program in programs.items():
        size = sum(each.numel() * each.element_size() for each in program.state_dict.values())
        try:
            with hide_attempts(), contextlib.redirect_stdout(io.StringIO()):
                torch.onnx.export(
                    program, (), folder / name, dynamo=True, verbose=False,
                    input_names=["images"], output_names=["features"],
                    external_data=size > _LARGEST,
                )  # fmt: skip
        except Exception as error:  # of torch and of onnx: many kinds
            raise ExportError(f"torch.onnx.export: {first_line(error)}") from error
