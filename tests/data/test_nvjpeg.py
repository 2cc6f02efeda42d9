"""What the GPU is given to decode, shown with a decoder that stands in for it."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data import decode as decoding
from t2t.data import nvjpeg
from t2t.data.decode import DamagedImage, decode, decode_each
from t2t.data.nvjpeg import decode_jpegs, gpu_decoder_name, upright

CPU = torch.device("cpu")


def jpeg(height=24, width=40, mode="RGB", orientation=1):
    ramp = np.linspace(0, 255, height * width).reshape(height, width)
    image = Image.fromarray(ramp.astype(np.uint8)).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95, exif=exif)
    return buffer.getvalue()


def stored(encoded, mode):
    """Pixels as they lie in the file, as torchvision's nvJPEG gives them."""
    with Image.open(io.BytesIO(encoded.numpy().tobytes())) as image:
        rows = np.array(image.convert("RGB" if mode == "RGB" else "L"))
    return torch.from_numpy(rows.reshape(*rows.shape[:2], -1)).permute(2, 0, 1)


@pytest.fixture
def calls(monkeypatch):
    """Sizes of the batches that the stand-in was given; it fails on a width of 13."""
    sizes = []

    def decoder(encoded, mode, device):
        sizes.append(len(encoded))
        pixels = [stored(data, mode) for data in encoded]
        if any(image.shape[2] == 13 for image in pixels):
            raise RuntimeError("no partial results")
        return pixels

    monkeypatch.setattr(nvjpeg, "_gpu_decoder", lambda device: ("fake", decoder, False))
    return sizes


def test_jpegs_go_in_one_batch_and_the_rest_stays(calls):
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "PNG")
    whole = jpeg()
    datas = [
        whole,
        png.getvalue(),
        torch.zeros(3, 4, 4, dtype=torch.uint8),
        jpeg(mode="CMYK"),
        whole[: len(whole) // 2],
        whole + bytes(100),
        jpeg(mode="L"),
        b"",
    ]
    decoded = decode_jpegs(datas, 3, CPU)
    assert sorted(decoded) == [0, 5, 6]
    assert calls == [3]
    for index in decoded:
        difference = decoded[index].int() - decode(datas[index]).int()
        assert difference.abs().max() <= 2


def test_one_bad_image_does_not_take_its_batch_along(calls):
    datas = [jpeg(), jpeg(), jpeg(width=13), jpeg()]
    assert sorted(decode_jpegs(datas, 3, CPU)) == [0, 1, 3]
    assert calls == [4, 2, 2, 1, 1]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_the_gpu_decodes_is_turned_upright(calls, orientation):
    data = jpeg(orientation=orientation)
    found = decode_jpegs([data], 1, CPU)[0]
    assert (found.int() - decode(data, channels=1).int()).abs().max() <= 2


def test_two_turns_undo_each_other():
    pixels = torch.arange(6).view(1, 2, 3)
    for orientation in (2, 3, 4, 5, 7):
        assert torch.equal(upright(upright(pixels, orientation), orientation), pixels)
    assert torch.equal(upright(upright(pixels, 6), 8), pixels)


def test_images_come_back_in_order_from_both_ways(monkeypatch):
    taken = torch.ones(3, 2, 2, dtype=torch.uint8)
    monkeypatch.setattr(
        decoding, "decode_jpegs", lambda datas, channels, device: {1: taken}
    )
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    outcomes = decode_each([jpeg(), jpeg(), b"junk"], device="cuda")
    assert outcomes[0].shape == (3, 24, 40)
    assert outcomes[1] is taken
    assert isinstance(outcomes[2], DamagedImage)


def test_without_a_gpu_the_cpu_decodes():
    assert gpu_decoder_name("cpu") is None
