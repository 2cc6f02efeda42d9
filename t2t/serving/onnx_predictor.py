"""Predicts with an exported ONNX model on ONNX Runtime, without importing PyTorch."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from t2t.data.center_crop import center_boxes, min_side_of
from t2t.data.decoding.damage import DamagedImage
from t2t.data.decoding.headers import DEFAULT_MAX_PIXELS
from t2t.data.decoding.levels import PixelArray, array_with_channels
from t2t.data.decoding.pillow_decoder import decode_with_pillow
from t2t.data.resources import num_cores
from t2t.errors import UserError, first_line
from t2t.ops.pillow_resize import resize_box
from t2t.serving.export_metadata import ExportMetadata
from t2t.serving.image_predictor import ImagePredictor
from t2t.serving.prediction import THRESHOLD, ClassProbability
from t2t.serving.read_image import ReadImage

Floats = npt.NDArray[np.float32]

INSTALL = (
    "ONNX models need onnxruntime: run `pip install '.[export]'` in a checkout, or "
    "`pip install onnxruntime`."
)
EXPORT_AGAIN = "export it again with `t2t export WEIGHTS --to onnx`."
INPUT_TYPES = {"normalised": "tensor(float)", "uint8": "tensor(uint8)"}
"""ONNX Runtime's name of each input."""
ONLY_ERRORS = 3
"""ONNX Runtime's level of its own messages on standard error."""


def load_onnx(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    threshold: float = THRESHOLD,
) -> "OnnxPredictor":
    """A predictor for a file that `t2t export --to onnx` wrote."""
    return OnnxPredictor(path, threads, max_pixels, threshold)


class OnnxPredictor(ImagePredictor[PixelArray]):
    """An exported model that predicts from images of any form and size."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int | None = None,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        threshold: float = THRESHOLD,
    ) -> None:
        """`threshold` is of models that predict several labels per image."""
        self.path = str(path)
        self.max_pixels, self.threshold = max_pixels, threshold
        self.session = open_session(path, threads)
        strings = self.session.get_modelmeta().custom_metadata_map
        self.metadata = ExportMetadata.from_strings(strings, self.path)
        self.is_multilabel = self.metadata.multilabel
        self.class_names = self.metadata.class_names
        self.readable_names = self.metadata.names
        size, fraction = self.metadata.image_size, self.metadata.crop_fraction
        self.min_side = min_side_of(size, fraction)
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        if (len(inputs), len(outputs)) != (1, 1):
            raise UserError(
                f"{path} has {len(inputs)} inputs and {len(outputs)} outputs instead "
                f"of one each: {EXPORT_AGAIN}"
            )
        self._check_input(inputs[0].shape, inputs[0].type)
        num_classes = len(self.class_names)
        if not fits(outputs[0].shape, (None, num_classes)):
            raise UserError(
                f"{path} outputs the shape {outputs[0].shape} instead of [batch, "
                f"{num_classes}], but names {num_classes} classes: {EXPORT_AGAIN}"
            )
        self.input_name = inputs[0].name

    def _check_input(self, shape: Sequence[object], kind: str) -> None:
        """Raises an error for a graph that takes other images than it says."""
        wanted = [self.metadata.channels, *self.metadata.image_size]
        if not fits(shape, (None, *wanted)):
            batch = ", ".join(str(side) for side in ("batch", *wanted))
            raise UserError(
                f"{self.path} takes images of the shape {[*shape]}, but names "
                f"[{batch}]: {EXPORT_AGAIN}"
            )
        expected = INPUT_TYPES[self.metadata.input]
        if kind != expected:
            raise UserError(
                f"{self.path} takes a {kind}, but its metadata names "
                f"{self.metadata.input} images, a {expected}: {EXPORT_AGAIN}"
            )

    def normalised(self, pixels: PixelArray) -> Floats:
        """Normalised pixels, as PyTorch computes them."""
        mean, std = self.metadata.mean, self.metadata.std
        scale = np.array([1 / (255 * each) for each in std], np.float32)
        shift = np.array(
            [-centre / each for centre, each in zip(mean, std, strict=True)], np.float32
        )
        return pixels.astype(np.float32) * scale[:, None, None] + shift[:, None, None]

    def outputs(self, pixels: PixelArray) -> Floats:
        """The output of the graph for uint8 pixels: logits or probabilities."""
        takes_pixels = self.metadata.input == "uint8"
        batch = pixels if takes_pixels else self.normalised(pixels)
        try:
            (outputs,) = self.session.run(None, {self.input_name: batch})
        # ONNX Runtime has a dozen classes of errors, none of them documented.
        except Exception as error:
            raise UserError(
                f"{self.path} cannot compute a batch of the shape {[*batch.shape]} "
                f"({first_line(error)}): {EXPORT_AGAIN}"
            ) from error
        if not np.isfinite(outputs).all():
            raise UserError(
                f"{self.path} outputs NaN or infinity: it is damaged; export it again."
            )
        result: Floats = outputs
        return result

    def probabilities(self, pixels: PixelArray) -> Floats:
        """The probability of every class for a batch of uint8 pixels."""
        outputs = self.outputs(pixels)
        if self.metadata.output == "probabilities":
            return outputs
        if self.metadata.multilabel:
            return sigmoid(outputs)
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)

    def _pixels(
        self,
        indices: Sequence[int],
        read: Sequence[ReadImage],
        names: Sequence[str],
        damaged: dict[int, DamagedImage],
        pool: ThreadPoolExecutor | None,
    ) -> list[PixelArray]:
        def cropped_one(index: int) -> PixelArray | DamagedImage:
            try:
                return self._cropped(self._decoded(read[index], names[index]))
            except DamagedImage as found:
                return DamagedImage(names[index], found.reason)

        images = []
        results = (map if pool is None else pool.map)(cropped_one, indices)
        for index, result in zip(indices, results, strict=True):
            if isinstance(result, DamagedImage):
                damaged[index] = result
            else:
                images.append(result)
        return [np.stack(images)] if images else []

    def _decoded(self, image: ReadImage, name: str) -> PixelArray:
        """The pixels of a whole image, in the channels of the model."""
        channels = self.metadata.channels
        if isinstance(image, DamagedImage):
            raise image
        if isinstance(image, bytes):
            return decode_with_pillow(
                image, channels, name, self.min_side, self.max_pixels
            )
        array = image if isinstance(image, np.ndarray) else image.cpu().numpy()
        return array_with_channels(array, channels, name)

    def _cropped(self, pixels: PixelArray) -> PixelArray:
        """The central crop, resized as in evaluation."""
        size, fraction = self.metadata.image_size, self.metadata.crop_fraction
        height, width = (np.array([side]) for side in pixels.shape[1:])
        (box,) = center_boxes(height, width, size, fraction)
        return resize_box(pixels, box.tolist(), size, bicubic=True)

    def _joined(self, pixels: Sequence[PixelArray]) -> PixelArray:
        return np.concatenate(list(pixels))

    def _classify(
        self, pixels: PixelArray, top: int | None
    ) -> list[tuple[ClassProbability, ...]]:
        probabilities = self.probabilities(pixels)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        order = order[:, : self.num_likely(top)]
        likely = np.take_along_axis(probabilities, order, axis=1)
        rows = zip(order.tolist(), likely.tolist(), strict=True)
        return [self.named(*row) for row in rows]


def fits(shape: Sequence[object], wanted: Sequence[int | None]) -> bool:
    """Whether a graph's shape has these axes; a named axis takes any size.

    The batch, None, may have no fixed size.
    """
    if len(shape) != len(wanted):
        return False
    return all(
        not isinstance(size, int) or size == given
        for size, given in zip(shape, wanted, strict=True)
    )


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-logits)), which overflows nowhere."""
    raised: Floats = np.tanh(logits / 2, dtype=np.float32)
    return (raised + np.float32(1)) / np.float32(2)


def open_session(path: str | os.PathLike[str], threads: int | None = None) -> Any:
    """ONNX Runtime's session on the CPU; an error if it is not installed."""
    try:
        onnxruntime = import_onnxruntime()
    except ImportError as error:
        raise UserError(INSTALL) from error
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"There is no file {path}; `t2t export WEIGHTS --to onnx` writes one."
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or threads_here()
    options.log_severity_level = ONLY_ERRORS
    try:
        return onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
    # ONNX Runtime has a dozen classes of errors, none of them documented.
    except Exception as error:
        raise UserError(
            f"{path} is not an ONNX model that can be run here ({first_line(error)}); "
            "export or copy it again."
        ) from error


def import_onnxruntime() -> Any:
    """ONNX Runtime, which reports no usage to its maker.

    From 1.31 on it does so by default, and writes a device ID into the home folder, as
    soon as it is imported. A user who wants that sets ORT_DISABLE_TELEMETRY=0.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def threads_here() -> int:
    """OMP_NUM_THREADS, or one thread for each core of this process."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else num_cores()
