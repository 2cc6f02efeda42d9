"""Accuracy and speed of the ways in which ONNX Runtime can quantize the built-in model.

    python benchmarks/export_int8.py PATH_TO_CIFAR10 --out records/export/int8.json

Dynamic: weights in int8, activations quantized as they are computed; with one scale for
a weight, or one for each of its outputs. Static: scales of activations from 64 training
images. All see the same validation images; times alternate, one image at a time.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from export_speed import alternate
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import t2t
from t2t.atomic import write_atomically
from t2t.data.sources import open_source
from t2t.deployment.accuracy import top1_of
from t2t.deployment.check_images import find_labelled
from t2t.models.trained import load_trained
from t2t.serving.onnx_predictor import OnnxPredictor

PRODUCTS = ["MatMul", "Gemm"]
NUM_CALIBRATION = 64


class Calibration(CalibrationDataReader):
    """Training images, normalised."""

    def __init__(self, predictor: OnnxPredictor, data: str) -> None:
        source = open_source(data, "train")
        at = np.linspace(0, len(source) - 1, NUM_CALIBRATION).astype(int)
        pixels = [predictor.model_input(source.read(int(index))) for index in at]
        self.images: Iterator[dict[str, Any]] = iter(
            {"images": predictor.normalised(each)} for each in pixels
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self.images, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--num-images", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    trained = load_trained("builtin")
    labelled = find_labelled(trained, arguments.data, arguments.num_images)
    assert labelled is not None
    with tempfile.TemporaryDirectory() as folder:
        files = {"float32": Path(folder) / "float32.onnx"}
        t2t.export("builtin", to="onnx", out=files["float32"], data=arguments.data)
        plain = onnx.load(str(files["float32"]))
        metadata = {each.key: each.value for each in plain.metadata_props}
        del plain.graph.value_info[:]
        for name, per_channel in (("per tensor", False), ("per channel", True)):
            file = files[f"dynamic, {name}"] = Path(folder) / f"dynamic {name}.onnx"
            quantize_dynamic(
                plain,
                file,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=PRODUCTS,
                per_channel=per_channel,
            )
        file = files["static, per channel"] = Path(folder) / "static.onnx"
        quantize_static(
            plain,
            file,
            Calibration(OnnxPredictor(files["float32"]), arguments.data),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=PRODUCTS,
            extra_options={"MatMulConstBOnly": True},
        )
        for file in files.values():
            model = onnx.load(str(file))
            onnx.helper.set_model_props(model, metadata)
            onnx.save(model, str(file))
        predictors = {
            name: OnnxPredictor(file, threads=arguments.threads)
            for name, file in files.items()
        }
        runners = {
            name: (lambda pixels, each=each: each.outputs(pixels.numpy()))
            for name, each in predictors.items()
        }
        top1 = top1_of(runners, trained, labelled)
        pixels = predictors["float32"].model_input(labelled.source.read(0))
        seconds = alternate(
            {
                name: (lambda each=each: each.outputs(pixels))
                for name, each in predictors.items()
            },
            arguments.rounds,
        )
        images = torch.cat(
            [
                torch.from_numpy(
                    predictors["float32"].model_input(labelled.source.read(index))
                )
                for index in range(64)
            ]
        )
        expected = predictors["float32"].outputs(images.numpy())
        rows = [
            {
                "quantization": name,
                "top1": top1[name],
                "largest_difference": float(
                    np.abs(each.outputs(images.numpy()) - expected).max()
                ),
                "times_as_fast_as_float32": round(
                    statistics.median(
                        np.array(seconds["float32"]) / np.array(seconds[name])
                    ),
                    3,
                ),
                "megabytes": round(files[name].stat().st_size / 1e6, 2),
            }
            for name, each in predictors.items()
        ]
    record = {
        "command": "python benchmarks/export_int8.py PATH_TO_CIFAR10",
        "images": labelled.where,
        "threads": arguments.threads,
        "rows": rows,
    }
    write_atomically(arguments.out, (json.dumps(record, indent=1) + "\n").encode())
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
