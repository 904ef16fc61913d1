"""`--to onnx`: model.onnx takes normalised images, model_uint8.onnx bytes, which it normalises."""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from sslengine.errors import ExportError
from sslengine.export import expect_packages
from sslengine.export.formats import Made, Proof
from sslengine.export.image_code import opening, view_code
from sslengine.export.subject import IMAGES, UNKNOWN, Subject
from sslengine.export.to_pt2 import ByteFeatures, hide_attempts, trace, trace_subject
from sslengine.models.weights.read import first_line

# Of one file; protocol buffers end at two gigabytes.
_LARGEST = 1.8e9

LOAD = """import onnxruntime
model = onnxruntime.InferenceSession("{folder}/model.onnx")
"""
LOAD_BYTES = LOAD.replace("model.onnx", "model_uint8.onnx")
RUN = """(features,) = model.run(["features"], {"images": images})"""
_NORMALISED = "# images: float32 N x {} x {} x {}, normalised: `view` of manifest.json\n"
_proof = partial(Proof, "onnxruntime", features=RUN, tolerance=1e-4, torch=False)


def prepare(subject: Subject, license: str) -> Made:
    expect_packages("onnx")
    program, free = trace_subject(subject)
    made = Made(
        partial(_write, {"model.onnx": program}),
        usage=LOAD + _NORMALISED.format(*subject.images.shape[1:]),
        proofs=(_proof(load=LOAD),),
        facts={"input": f"float32 {list(subject.images.shape)}, normalised", "any_length": free},
        remarks=(f"Axes of any length: {free}.",),
    )
    bits = {None: UNKNOWN, False: "the run's images have more than 8 bits", True: ""}
    if why := subject.preprocessing.besides or bits[subject.has_bytes]:
        remark = f"There is no file that normalises images itself: {why}."
        facts = {**made.facts, "no_input_of_pixels": why}
        return replace(made, facts=facts, remarks=(*made.remarks, remark))
    return _add_bytes(subject, program, made)


def _add_bytes(subject: Subject, program: ExportedProgram, made: Made) -> Made:
    count, channels, height, width = subject.images.shape
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, height, width, channels), dtype=torch.uint8,
                           generator=generator)  # fmt: skip
    given = subject.preprocessing
    network = ByteFeatures(subject.trunk, given.mean, given.std)
    second, _ = trace(network, images, (1, 2))
    proof = _proof(
        load=LOAD_BYTES,
        given=images.numpy(),
        expected=network(images).detach().numpy(),
        compared=f"features of {IMAGES} images of bytes",
    )
    example = opening(subject) + RUN.replace("images}", "view(image)[None]}")
    normalised = f"float32 N x {channels} x {height} x {width}"
    return replace(
        made,
        write=partial(_write, {"model.onnx": program, "model_uint8.onnx": second}),
        usage=view_code(subject) + LOAD_BYTES,
        example="" if subject.besides else example,
        proofs=(*made.proofs, proof),
        facts={**made.facts, "input_uint8": f"uint8 {list(images.shape)}, resized and cropped"},
        remarks=(f"`model.onnx` takes images that are normalised: {normalised}.", *made.remarks),
    )


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
