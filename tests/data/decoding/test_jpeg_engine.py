"""nvJPEG's C interface: what it is handed, shown with functions that stand in."""

import ctypes
import io
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from t2t.data.decoding import jpeg_engine
from t2t.data.decoding.decode import decode
from t2t.data.decoding.jpeg_engine import JpegEngine, JpegEngines, has_library
from t2t.data.decoding.jpegs import gather_jpegs
from t2t.data.decoding.nvjpeg import decode_jpegs, gpu_decoder_name

CPU = torch.device("cpu")
REFUSED = 7


def jpeg(height, width, **options):
    ramp = np.linspace(0, 255, height * width * 3).reshape(height, width, 3)
    file = io.BytesIO()
    Image.fromarray(ramp.astype(np.uint8)).save(file, "JPEG", **options)
    return file.getvalue()


def stored(data, mode):
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert(mode))


class Library:
    """The functions of nvJPEG that are called, on a CPU: they follow the pointers."""

    def __init__(self):
        self.num_handles = 0
        self.batch = self.format = None
        self.last = b""
        self.functions = {
            name: getattr(self, name[len("nvjpeg") :])
            for name in jpeg_engine._SIGNATURES
        }

    def GetProperty(self, kind, answer):  # noqa: N802
        return 0

    def _create(self, answer):
        self.num_handles += 1
        ctypes.c_void_p.from_address(answer).value = self.num_handles
        return 0

    def CreateEx(self, backend, device, pinned, flags, answer):  # noqa: N802
        return self._create(answer)

    def JpegStateCreate(self, handle, answer):  # noqa: N802
        return self._create(answer)

    JpegStreamCreate = JpegStateCreate

    def DecodeBatchedPreAllocate(self, handle, state, *sizes):  # noqa: N802
        return 0

    def JpegStreamParseHeader(self, handle, data, length, stream):  # noqa: N802
        self.last = ctypes.string_at(data, length)
        return 0

    def JpegStreamGetFrameDimensions(self, stream, width, height):  # noqa: N802
        size = Image.open(io.BytesIO(self.last)).size
        for position, side in zip((width, height), size, strict=True):
            ctypes.c_uint.from_address(position).value = side
        return 0

    def DecodeBatchedSupported(self, handle, stream, answer):  # noqa: N802
        progressive = b"\xff\xc2" in self.last
        ctypes.c_int.from_address(answer).value = int(progressive)
        return 0

    def DecodeBatchedInitialize(self, handle, state, batch, threads, kind):  # noqa: N802
        self.batch, self.format = batch, kind
        return 0

    def DecodeBatched(self, handle, state, datas, lengths, images, stream):  # noqa: N802
        for index in range(self.batch):
            data = ctypes.c_void_p.from_address(datas + 8 * index).value
            length = ctypes.c_size_t.from_address(lengths + 8 * index).value
            encoded = ctypes.string_at(data, length)
            if encoded[6:10] != b"JFIF":
                return REFUSED
            record = (ctypes.c_size_t * 8).from_address(images + 64 * index)
            self._write(encoded, record)
        return 0

    def _write(self, encoded, record):
        if self.format == 3:
            planes = list(stored(encoded, "RGB").transpose(2, 0, 1))
        else:
            planes = [stored(encoded, "L")]
        for number, plane in enumerate(planes):
            for row, line in enumerate(np.ascontiguousarray(plane)):
                address = record[number] + row * record[4 + number]
                ctypes.memmove(address, line.ctypes.data, line.nbytes)


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(jpeg_engine, "_functions", lambda: made.functions)
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: event)
    return made


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_many_sizes_lie_in_one_buffer(library, channels):
    datas = [jpeg(9, 14), jpeg(16, 5), jpeg(7, 7)]
    engine = JpegEngine()
    jpegs = gather_jpegs(datas, pinned=False)
    ragged = engine.decode(jpegs.chosen(slice(1, 3)), channels, CPU)
    assert len(ragged) == 2
    for index, data in enumerate(datas[1:]):
        wanted = stored(data, "RGB" if channels == 3 else "L")
        found = ragged.image(index).permute(1, 2, 0).numpy()
        np.testing.assert_array_equal(found, wanted.reshape(found.shape))
    assert not ragged.interleaved.any()


def test_what_the_hardware_cannot_do_is_left_out(library):
    datas = [jpeg(16, 16), jpeg(16, 16, progressive=True), jpeg(9, 9)]
    jpegs = gather_jpegs(datas, pinned=False)
    assert JpegEngine().accepts(jpegs).tolist() == [True, False, True]


def test_an_image_of_another_size_than_it_has_room_for_is_left_out(library):
    datas = [jpeg(16, 24), jpeg(9, 9), jpeg(7, 5)]
    jpegs = gather_jpegs(datas, pinned=False)
    jpegs.heights[1] = 8
    jpegs.widths[2], jpegs.heights[2] = 7, 5
    assert JpegEngine().accepts(jpegs).tolist() == [True, False, False]


def test_a_refused_batch_raises_with_the_status(library):
    engine = JpegEngine()
    bad = jpeg(8, 8).replace(b"JFIF", b"JUNK")
    jpegs = gather_jpegs([bad], pinned=False)
    with pytest.raises(RuntimeError, match=f"nvjpegDecodeBatched .* {REFUSED}"):
        engine.decode(jpegs, 3, CPU)


def test_threads_never_share_an_engine_and_leave_theirs_to_the_next(
    library, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "device", lambda device: io.BytesIO())
    engines = JpegEngines(CPU)
    with engines.borrowed() as first, engines.borrowed() as second:
        assert first is not second
    with engines.borrowed() as third:
        assert third in (first, second)


@pytest.mark.skipif(not has_library(), reason="nvJPEG is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_library_says_so():
    with pytest.raises(RuntimeError, match="nvjpegCreateEx failed with status"):
        JpegEngine()


def on_gpu(test):
    """Runs where the hardware decodes JPEGs."""
    found = torch.cuda.is_available() and gpu_decoder_name("cuda:0") == "nvJPEG"
    return pytest.mark.skipif(not found, reason="needs nvJPEG's hardware")(test)


def photographs(num):
    """Smooth images of many sizes, a few grey, turned or in several scans."""
    rng = np.random.default_rng(0)
    datas = []
    for index in range(num):
        small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        size = tuple(rng.integers(60, 500, 2).tolist())
        picture = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = 1 + index % 8
        file = io.BytesIO()
        picture = picture.convert("L") if index % 7 == 3 else picture
        picture.save(file, "JPEG", quality=90, progressive=index % 9 == 5, exif=exif)
        datas.append(file.getvalue())
    return datas


@on_gpu
@pytest.mark.parametrize("channels", [1, 3])
def test_the_hardware_decodes_as_the_cpu_does(channels):
    datas = photographs(40)
    positions, ragged = decode_jpegs(datas, channels, torch.device("cuda:0"))
    assert set(positions.tolist()) == {index for index in range(40) if index % 9 != 5}
    for number, position in enumerate(positions.tolist()):
        found = ragged.image(number).cpu().int()
        wanted = decode(datas[position], channels=channels).int()
        assert found.shape == wanted.shape
        assert (found - wanted).abs().float().mean() < 2


@on_gpu
def test_many_threads_decode_at_once_and_nothing_mixes():
    datas = photographs(64)
    device = torch.device("cuda:0")

    def decoded(turn):
        stream = torch.cuda.Stream(device, -1)
        with torch.cuda.stream(stream):
            order = np.random.default_rng(turn).permutation(len(datas))
            positions, ragged = decode_jpegs([datas[i] for i in order], 3, device)
            return {
                int(order[position]): ragged.image(number).cpu()
                for number, position in enumerate(positions.tolist())
            }

    alone = decoded(0)
    with ThreadPoolExecutor(6) as threads:
        for images in threads.map(decoded, range(24)):
            assert images.keys() == alone.keys()
            assert all(torch.equal(images[i], alone[i]) for i in alone)
