"""What the GPU is given to decode, shown with a decoder that stands in for it."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.decoding import decode as decoding
from t2t.data.decoding import nvjpeg
from t2t.data.decoding.decode import DamagedImage, decode, decode_each
from t2t.data.decoding.jpegs import gather_jpegs
from t2t.data.decoding.nvjpeg import (
    GpuDecoder,
    LibraryDecoder,
    decode_jpegs,
    gpu_decoder_name,
    upright,
)
from t2t.ops.ragged import Ragged

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

    fake = GpuDecoder("fake", LibraryDecoder(decoder, is_upright=False).borrowed)
    monkeypatch.setattr(nvjpeg, "_gpu_decoder", lambda device: fake)
    return sizes


def decoded(datas, channels):
    """Images by their position among the data."""
    positions, ragged = decode_jpegs(datas, channels, CPU)
    assert len(positions) == len(ragged)
    numbered = enumerate(positions.tolist())
    return {position: ragged.image(number) for number, position in numbered}


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
    images = decoded(datas, 3)
    assert sorted(images) == [0, 5, 6]
    assert calls == [3]
    for index, image in images.items():
        difference = image.int() - decode(datas[index]).int()
        assert difference.abs().max() <= 2


def test_a_height_in_a_later_marker_is_not_decoded_by_the_gpu(calls):
    data = bytearray(jpeg(24, 40))
    frame = data.index(b"\xff\xc0")
    assert data[frame + 5 : frame + 9] == bytes([0, 24, 0, 40])
    data[frame + 5 : frame + 7] = bytes(2)
    assert decode_jpegs([bytes(data)], 3, CPU) is None
    assert calls == []


def test_too_little_memory_is_not_taken_for_bad_images(monkeypatch):
    def full(encoded, mode, device):
        raise torch.OutOfMemoryError("tried to allocate too much")

    fake = GpuDecoder("fake", LibraryDecoder(full, is_upright=False).borrowed)
    monkeypatch.setattr(nvjpeg, "_gpu_decoder", lambda device: fake)
    with pytest.raises(torch.OutOfMemoryError, match="too much"):
        decode_jpegs([jpeg(), jpeg()], 3, CPU)


def test_one_bad_image_does_not_take_its_batch_along(calls):
    datas = [jpeg(), jpeg(), jpeg(width=13), jpeg()]
    assert sorted(decoded(datas, 3)) == [0, 1, 3]
    assert calls == [4, 2, 2, 1, 1]


def test_nothing_to_decode_is_no_batch(calls):
    assert decode_jpegs([b"", jpeg(mode="CMYK"), jpeg(width=13)], 3, CPU) is None
    assert calls == [1]
    assert decode_jpegs([jpeg()], 4, CPU) is None


def test_a_library_decodes_once_the_memory_it_gets_is_free(monkeypatch):
    events = []
    stream = SimpleNamespace(synchronize=lambda: events.append("waited"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)

    def decoder(encoded, mode, device):
        events.append("decoded")
        return [stored(data, mode) for data in encoded]

    jpegs = gather_jpegs([jpeg()], pinned=False)
    library = LibraryDecoder(decoder, is_upright=True)
    library.decode(jpegs, 3, torch.device("cuda"))
    assert events == ["waited", "decoded"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_the_gpu_decodes_is_turned_upright(calls, orientation):
    # Neighbours in the buffer stay as they are.
    datas = [jpeg(width=17), jpeg(orientation=orientation), jpeg(height=9)]
    for channels in (1, 3):
        for position, found in decoded(datas, channels).items():
            wanted = decode(datas[position], channels=channels)
            assert found.shape == wanted.shape
            assert (found.int() - wanted.int()).abs().max() <= 2


def test_two_turns_undo_each_other():
    pixels = torch.arange(6).view(1, 2, 3)
    for orientation in (2, 3, 4, 5, 7):
        assert torch.equal(upright(upright(pixels, orientation), orientation), pixels)
    assert torch.equal(upright(upright(pixels, 6), 8), pixels)


def test_images_come_back_in_order_from_both_ways(monkeypatch):
    taken = torch.ones(3, 2, 2, dtype=torch.uint8)
    found = np.array([1]), Ragged.from_images([taken])
    monkeypatch.setattr(decoding, "decode_jpegs", lambda *_, **__: found)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)
    outcomes = decode_each([jpeg(), jpeg(), b"junk"], device="cuda")
    assert outcomes[0].shape == (3, 24, 40)
    assert torch.equal(outcomes[1], taken)
    assert isinstance(outcomes[2], DamagedImage)


def test_without_a_gpu_the_cpu_decodes():
    assert gpu_decoder_name("cpu") is None


def test_jpegs_are_gathered_end_to_end_with_what_their_headers_tell():
    datas = [jpeg(height=9), b"junk", jpeg(width=17, orientation=6), jpeg(mode="L")]
    jpegs = gather_jpegs(datas, pinned=False)
    assert jpegs.positions.tolist() == [0, 2, 3]
    assert jpegs.heights.tolist() == [9, 24, 24]
    assert jpegs.widths.tolist() == [40, 17, 40]
    assert jpegs.orientations.tolist() == [1, 6, 1]
    for part, position in zip(jpegs.encoded(), [0, 2, 3], strict=True):
        assert part.numpy().tobytes() == datas[position]
    for which in (slice(1, 2), np.array([False, True, False])):
        second = jpegs.chosen(which)
        assert second.positions.tolist() == [2]
        assert second.encoded()[0].numpy().tobytes() == datas[2]


def test_what_is_too_large_to_decode_is_not_given_to_the_gpu():
    datas = [jpeg(), jpeg(width=41)]
    gathered = gather_jpegs(datas, pinned=False, max_pixels=24 * 40)
    assert gathered.positions.tolist() == [0]


@pytest.mark.parametrize("right", [True, False])
def test_a_decoder_is_taken_only_if_it_reads_known_pixels(monkeypatch, right):
    def decoder(encoded, mode, device):
        return [stored(data, mode).flip(0 if right else 1) for data in encoded]

    def decodes(encoded, mode, device):
        return [stored(data, mode) for data in encoded]

    candidates = [
        GpuDecoder("no hardware", LibraryDecoder(fails, False).borrowed),
        GpuDecoder("colours swapped", LibraryDecoder(decoder, False).borrowed),
    ]
    if right:
        candidates.append(GpuDecoder("good", LibraryDecoder(decodes, False).borrowed))
    monkeypatch.setattr(nvjpeg, "_candidates", lambda device: iter(candidates))
    found = nvjpeg._gpu_decoder.__wrapped__(CPU)
    assert (found.name if found else None) == ("good" if right else None)


def fails(encoded, mode, device):
    raise RuntimeError("built without nvJPEG")
