"""Every kind of image file becomes the same upright uint8 pixels, or is named."""

import io
import os
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, features

from t2t.data.crops import CenterCrop, RandomCrop, apply_crop, min_side_for
from t2t.data.decoding import decode as decoding
from t2t.data.decoding import pillow_decoder, pixel_budget, pixel_tensors
from t2t.data.decoding.damage import Damage, DamagedImage, damage_limit
from t2t.data.decoding.decode import (
    decode,
    decode_each,
    decoder_name,
    image_size,
    with_channels,
)
from t2t.data.decoding.headers import image_format, jpeg_header
from t2t.data.decoding.pixel_budget import PixelBudget
from t2t.data.decoding.pixel_tensors import shrunk
from t2t.data.rng import CounterRng
from t2t.errors import LocalError, UserError
from t2t.ops.ragged import Ragged

needs_avif = pytest.mark.skipif(
    not features.check("avif"), reason="Pillow was built without AVIF"
)


def picture(height=24, width=40, seed=0):
    """A smooth colour picture, which JPEG keeps nearly as it is."""
    rows = np.linspace(0, 1, height)[:, None, None]
    columns = np.linspace(0, 1, width)[None, :, None]
    phases = np.array([0.0, 1.0, 2.0]) + seed
    values = 0.5 + 0.5 * np.sin(3 * rows + 2 * columns + phases)
    return Image.fromarray((values * 255).astype(np.uint8))


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels_of(image):
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


@pytest.fixture(params=["first choice", "pillow alone"])
def decoder(request, monkeypatch):
    """Runs a test with the fastest decoder there is and with the last resort."""
    if request.param == "pillow alone":
        monkeypatch.setattr(decoding, "_fast_decoder", lambda: None)
    return request.param


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("PPM", {}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_lossless_formats_are_exact(kind, options, decoder):
    image = picture()
    pixels = decode(encoded(image, kind, **options))
    assert pixels.dtype == torch.uint8
    assert torch.equal(pixels, pixels_of(image))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpeg_equals_pillow(options, decoder):
    data = encoded(picture(), "JPEG", quality=95, **options)
    expected = pixels_of(Image.open(io.BytesIO(data)))
    difference = (decode(data).int() - expected.int()).abs()
    assert difference.max() <= 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "GIF", "PPM"])
def test_pixels_are_counted_by_the_header_alone(kind):
    data = encoded(picture(24, 40), kind)
    assert image_size(data) == (24, 40)
    assert image_size(data[: len(data) // 2]) in ((0, 0), (24, 40))


def test_what_has_no_header_has_no_pixels():
    for data in (b"", b"text", b"\xff\xd8\xff"):
        assert image_size(data) == (0, 0)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr"])
def test_every_colour_mode_becomes_rgb(mode, decoder):
    image = picture().convert(mode)
    kind = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
    data = encoded(image, kind)
    expected = pixels_of(Image.open(io.BytesIO(data)))
    assert (decode(data).int() - expected.int()).abs().max() <= 3


@needs_avif
def test_avif(decoder):
    data = encoded(Image.new("RGB", (20, 10), (10, 200, 30)), "AVIF", quality=100)
    assert image_format(data) == "avif"
    assert (decode(data)[:, 5, 5].int() - torch.tensor([10, 200, 30])).abs().max() <= 3


def test_a_jpeg_with_a_second_picture_behind_it(decoder):
    image = picture()
    data = encoded(image, "MPO", save_all=True, append_images=[image], quality=95)
    assert decode(data).shape == (3, 24, 40)


def test_palette_with_transparency_keeps_its_colours_and_does_not_warn(decoder):
    image = picture().quantize(16)
    data = encoded(image, "PNG", transparency=bytes(range(16)))
    assert torch.equal(decode(data), pixels_of(image))


def test_sixteen_bits_are_scaled_and_not_clipped(decoder):
    values = np.array([[0, 257, 32896, 65279, 65535]], np.uint16)
    data = encoded(Image.fromarray(values), "PNG")
    assert decode(data)[:, 0].tolist() == [[0, 1, 128, 254, 255]] * 3
    assert decode(data, channels=1)[:, 0].tolist() == [[0, 1, 128, 254, 255]]


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        ("int32", 1),
        ("int32", 257),
        ("uint16", 257),
        ("float32", 1 / 255),
        ("float32", 1),
        ("float32", 257),
    ],
)
def test_wide_pixels_look_as_their_values_mean(kind, scale):
    values = np.arange(256).reshape(16, 16)
    image = Image.fromarray((values * scale).astype(kind))
    found = decode(encoded(image, "TIFF"), channels=1)[0]
    assert (found - torch.from_numpy(values)).abs().max() == 0


def tiff(bits, photometric, pixels):
    """A grey file of 4 × 2 pixels."""
    tags = [(256, 4), (257, 2), (258, bits), (259, 1), (262, photometric), (273, 8)]
    tags += [(277, 1), (278, 2), (279, len(pixels))]
    directory = b"".join(struct.pack("<HHIHH", tag, 3, 1, v, 0) for tag, v in tags)
    data = b"II*\0" + struct.pack("<I", 8 + len(pixels)) + pixels
    return data + struct.pack("<H", len(tags)) + directory + bytes(4)


def test_twelve_bits_reach_white():
    data = tiff(12, 1, bytes((0, 0, 0, 255, 255, 255)) * 2)
    assert decode(data, channels=1)[0].tolist() == [[0, 0, 255, 255]] * 2


def test_white_may_be_zero():
    data = tiff(16, 0, bytes((255, 255, 0, 0, 0, 128, 255, 255)) * 2)
    assert decode(data, channels=1)[0].tolist() == [[0, 255, 127, 0]] * 2


@pytest.mark.parametrize("value", [-1, 65536, 2**31 - 1])
def test_thirty_two_bits_are_not_clipped(value):
    data = encoded(Image.fromarray(np.full((4, 4), value, np.int32)), "TIFF")
    with pytest.raises(DamagedImage, match=r"32-bit pixels range from .* with 8 or 16"):
        decode(data)


@pytest.mark.parametrize("value", [-0.5, 1e6, np.nan, np.inf])
def test_float_pixels_of_no_usual_range_are_refused(value):
    image = np.full((4, 4), 0.5, np.float32)
    image[1, 2] = value
    with pytest.raises(DamagedImage, match=r"floating point|NaN or infinite"):
        decode(encoded(Image.fromarray(image), "TIFF"))


def test_a_black_image_of_sixteen_bits_stays_black():
    data = b"P5 2 1 65535\n" + bytes((0, 200, 0, 100))
    assert decode(data, channels=1).max() <= 1


def test_an_animation_gives_its_first_frame(decoder):
    frames = [picture(seed=seed).quantize(32) for seed in (0, 2)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert torch.equal(decode(data), pixels_of(frames[0]))
    frames = [picture(seed=seed) for seed in (0, 2)]
    data = encoded(
        frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True
    )
    assert torch.equal(decode(data), pixels_of(frames[0]))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "TIFF", pytest.param("AVIF", marks=needs_avif)]
)
def test_images_come_out_upright(orientation, kind, decoder):
    image = picture()
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if kind == "JPEG" else {}
    data = encoded(image, kind, exif=exif, **options)
    expected = pixels_of(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    found = decode(data)
    assert found.shape == expected.shape
    assert (found.int() - expected.int()).abs().max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_webp_comes_out_upright_where_torchvision_would_not_turn_it(
    orientation, monkeypatch
):
    monkeypatch.setattr(decoding, "_SMALL", 0)
    image = picture()
    stored = pixels_of(image)
    calls = []

    def by_torchvision(encoded, mode):
        calls.append(mode)
        return stored

    monkeypatch.setattr(
        decoding, "_fast_decoder", lambda: ("torchvision", by_torchvision)
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, "WEBP", lossless=True, exif=exif)
    expected = pixels_of(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert torch.equal(decode(data), expected)
    assert not calls
    decode(encoded(image, "WEBP", lossless=True))  # nothing to turn
    assert calls == ["RGB"]


def test_an_orientation_behind_other_metadata(decoder):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(picture(), "JPEG", exif=exif)
    words = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"
    block = b"\xff\xe1" + (2 + len(words)).to_bytes(2, "big") + words
    assert decode(data[:2] + block + data[2:]).shape == (3, 40, 24)


def test_a_broken_exif_block_is_no_damage(decoder):
    exif = Image.Exif()
    exif[0x0112] = 9
    for broken in (b"Exif\0\0MM\0*\0\0\xff\xff rest", exif):
        data = encoded(picture(), "JPEG", exif=broken)
        assert decode(data).shape == (3, 24, 40)


def test_pixels_of_another_kind_are_left_to_pillow(monkeypatch):
    wide = torch.zeros(3, 24, 40, dtype=torch.uint16)
    monkeypatch.setattr(decoding, "_fast_decoder", lambda: ("", lambda *_: wide))
    assert torch.equal(decode(encoded(picture(), "PNG")), pixels_of(picture()))


def test_a_file_is_what_its_bytes_say(tmp_path):
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        assert image_format(encoded(picture(), kind)) == kind.lower()
    assert image_format(b"hello, world") is None


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_the_jpeg_header_has_the_size(mode):
    image = picture(17, 33).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(image, "JPEG", exif=exif)
    assert jpeg_header(data) == (17, 33, len(image.getbands()), 6)
    padding, conditioning = b"\xff\xff", b"\xff\xcc\0\4\0\0"
    assert jpeg_header(data[:2] + conditioning + padding + data[2:]) == jpeg_header(
        data
    )
    assert jpeg_header(data[:30]) is None


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_as_asked(channels, decoder):
    for image in (picture(), picture().convert("L"), picture().convert("RGBA")):
        pixels = decode(encoded(image, "PNG"), channels=channels)
        assert pixels.shape == (channels, 24, 40)
        mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        expected = np.array(image.convert(mode)).reshape(24, 40, channels)
        difference = pixels.permute(1, 2, 0).int() - torch.from_numpy(expected).int()
        assert difference.abs().max() <= 1


def test_decoded_pixels_pass_through():
    grey = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4)
    assert decode(grey, channels=1) is grey
    assert torch.equal(decode(grey), grey.repeat(3, 1, 1))
    colour = pixels_of(picture())
    luma = pixels_of(picture().convert("L"))[:1]
    difference = with_channels(colour, 1).int() - luma.int()
    assert difference.abs().max() <= 1
    with pytest.raises(UserError, match="1, 3 or 4"):
        decode(grey, channels=2)
    with pytest.raises(UserError, match="5 channels"):
        decode(torch.zeros(5, 2, 2, dtype=torch.uint8))


def test_a_smaller_decode_keeps_the_short_side(decoder):
    data = encoded(picture(600, 1000), "JPEG", quality=95)
    assert decode(data, min_side=400).shape == (3, 600, 1000)
    half = decode(data, min_side=300)
    assert half.shape == (3, 300, 500)
    assert decode(data, min_side=140).shape == (3, 150, 250)
    odd = encoded(picture(600, 1001), "JPEG")
    assert decode(odd, min_side=300).shape == (3, 300, 501)
    expected = pixels_of(picture(600, 1000).resize((500, 300), Image.Resampling.BOX))
    assert (half.int() - expected.int()).abs().float().mean() < 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_small_image_is_never_shrunk(kind, decoder):
    data = encoded(picture(300, 500), kind)
    assert torch.equal(decode(data, min_side=20), decode(data))
    data = encoded(picture(700, 800), kind)
    assert torch.equal(decode(data, min_side=351), decode(data))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "BMP", "GIF"])
def test_every_kind_is_shrunk_by_means(kind, decoder):
    image = picture(605, 1001).quantize(64) if kind == "GIF" else picture(605, 1001)
    options = {"lossless": True} if kind == "WEBP" else {}
    found = decode(encoded(image, kind, **options), min_side=75)
    assert found.shape == (3, 76, 126)
    expected = pixels_of(image.convert("RGB").reduce(8))
    assert (found.int() - expected.int()).abs().max() <= 1


def test_means_on_a_gpu_are_those_of_the_cpu():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (3, 75, 131), generator=generator, dtype=torch.uint8)
    for factor in (2, 4, 8, 64):
        pooled = pixel_tensors._pooled(pixels, factor)
        assert torch.equal(pooled, shrunk(pixels, factor))


def test_sums_of_many_pixels_do_not_overflow():
    white = torch.full((3, 1200, 1000), 255, dtype=torch.uint8)
    for factor in (2, 16, 32, 256):
        assert shrunk(white, factor).unique().tolist() == [255]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("crop", [CenterCrop(size=(64, 64)), RandomCrop(size=(64, 64))])
def test_what_is_cropped_from_a_shrunk_image_looks_the_same(kind, crop, decoder):
    noise = np.random.default_rng(0).normal(0, 20, (200, 300, 3)).repeat(4, 0)
    detailed = np.array(picture(800, 1200)) + noise.repeat(4, 1)
    image = Image.fromarray(detailed.clip(0, 255).astype(np.uint8))
    data = encoded(image, kind)
    crops = []
    for min_side in (None, min_side_for(crop)):
        ragged = Ragged.from_images([decode(data, min_side=min_side)])
        rng = CounterRng.of(0, 0, torch.arange(1))
        crops.append(apply_crop(crop, ragged, rng)[0].int())
    assert ragged.heights.tolist() == [200]
    assert (crops[0] - crops[1]).abs().float().mean() < 1.5


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"not an image", "not an image"),
        (b"\0\0\0\x18ftypheic" + bytes(99), "it is a HEIC image"),
    ],
)
def test_a_damaged_image_is_named(data, reason, decoder):
    with pytest.raises(DamagedImage, match=f"cats/1.jpg: .*{reason}") as caught:
        decode(data, name="cats/1.jpg")
    assert caught.value.name == "cats/1.jpg"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_half_a_file_is_damaged(kind, decoder):
    data = encoded(picture(), kind)
    with pytest.raises(DamagedImage):
        decode(data[: len(data) // 2], name="half")


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=4),
    orientation=st.integers(0, 65535),
)
def test_any_damage_is_either_read_or_named(kind, cut, flips, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = bytearray(encoded(picture(8, 8), kind, exif=exif))
    # The size stands in the first bytes, or in a JPEG's header: kept, since a flipped
    # bit there asks for gigabytes.
    header = jpeg_header(bytes(data))
    for place, mask in flips:
        data[40 + int(place * (len(data) - 40))] ^= mask
    if kind == "JPEG" and jpeg_header(bytes(data)) != header:
        return
    data = bytes(data[: int(cut * len(data))])
    (outcome,) = decode_each([data], names=["x"])
    if isinstance(outcome, DamagedImage):
        assert outcome.name == "x"
        assert outcome.reason
    else:
        assert outcome.dtype == torch.uint8
        assert outcome.shape[0] == 3


def test_a_batch_decodes_in_order_by_threads():
    datas = [encoded(picture(16, 16 + n), "PNG") for n in range(9)]
    one = decode_each(datas)
    assert [p.shape[2] for p in one] == list(range(16, 25))
    with ThreadPoolExecutor(2) as pool:
        pooled = decode_each(datas, pool=pool)
    for first, second in zip(one, pooled, strict=True):
        assert torch.equal(first, second)


def test_damage_in_a_batch_spares_the_others():
    datas = [encoded(picture(), "PNG"), b"junk", encoded(picture(), "BMP")]
    outcomes = decode_each(datas, names=["a", "b", "c"])
    assert torch.equal(outcomes[0], outcomes[2])
    assert isinstance(outcomes[1], DamagedImage)
    assert outcomes[1].name == "b"
    assert decode_each([]) == []


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_too_many_pixels_are_reported_before_any_is_decoded(monkeypatch, kind):
    data = encoded(Image.new("RGB", (40, 20)), kind)
    assert decode(data).shape == (3, 20, 40)
    assert decode(data, max_pixels=800).shape == (3, 20, 40)
    with pytest.raises(
        DamagedImage, match="a: its 40 × 20 pixels exceed the limit of 79"
    ):
        decode(data, name="a", max_pixels=799)


def test_what_pillow_keeps_three_times_may_have_a_third_of_the_pixels(monkeypatch):
    monkeypatch.setattr(decoding, "_SMALL", 0)
    data = encoded(picture(), "WEBP")
    assert decode(data, max_pixels=24 * 40).shape == (3, 24, 40)
    monkeypatch.setattr(decoding, "_fast_decoder", lambda: None)
    assert decode(data, max_pixels=3 * 24 * 40).shape == (3, 24, 40)
    with pytest.raises(DamagedImage, match="pixels exceed the limit of 320"):
        decode(data, max_pixels=24 * 40)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_the_pixels_in_flight_are_counted(monkeypatch, kind):
    monkeypatch.setattr(decoding, "_SMALL", 0)
    budget = PixelBudget(1 << 20)
    seen = []
    monkeypatch.setattr(pixel_budget, "_MIN_COUNTED", 1)
    monkeypatch.setattr(decoding, "BUDGET", budget)
    monkeypatch.setattr(pillow_decoder, "BUDGET", budget)
    monkeypatch.setattr(
        budget, "reserve", lambda num: seen.append(num) or nullcontext()
    )
    decode(encoded(picture(), kind))
    assert seen == [24 * 40]


def test_a_budget_is_never_exceeded_by_threads(monkeypatch):
    monkeypatch.setattr(pixel_budget, "_MIN_COUNTED", 1)
    budget, lock = PixelBudget(10), threading.Lock()
    inside, most = 0, 0

    def work(num):
        nonlocal inside, most
        with budget.reserve(num):
            with lock:
                inside += min(num, 10)
                most = max(most, inside)
            time.sleep(0.002)
            with lock:
                inside -= min(num, 10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 20, 1, 10, 5, 2, 6] * 3))
    assert 0 < most <= 10


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="processes need Linux")
def test_a_budget_is_shared_by_processes(monkeypatch):
    monkeypatch.setattr(pixel_budget, "_MIN_COUNTED", 1)
    budget = PixelBudget(64)
    with open(os.memfd_create("t2t"), "wb") as file:
        budget.share(file.fileno())
        script = (
            "import os, sys; from t2t.data.decoding import pixel_budget as f;"
            "f._MIN_COUNTED = 1; b = f.PixelBudget(64); b.share(int(sys.argv[1]));"
            "c = b.reserve(40); c.__enter__(); print(1, flush=True); sys.stdin.read()"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", script, str(file.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[file.fileno()],
        )
        assert other.stdout.readline() == b"1\n"
        with budget.reserve(24):  # which there is room for
            pass
        began = time.perf_counter()
        threading.Timer(0.2, other.kill).start()  # what it had is given back
        with budget.reserve(25):
            assert time.perf_counter() - began > 0.15
        other.communicate()


DAMAGED_NOTES = {
    "PNG": {"icc_profile": b"x" * 200},
    "TIFF": {"compression": "tiff_lzw"},
    "JPEG": {},
}


@pytest.mark.parametrize("kind", [*DAMAGED_NOTES])
def test_decoders_say_nothing_of_a_file_that_they_do_not_name(kind, capfd):
    data = bytearray(encoded(picture(64, 64), kind, **DAMAGED_NOTES[kind]))
    for place in range(len(data) // 3, len(data) - 2, 97):
        data[place] ^= 0x55
    with suppress(DamagedImage):
        decode(bytes(data), name="a")
    with suppress(DamagedImage):
        decode(bytes(data[: len(data) * 2 // 3]), name="a")
    image_size(bytes(data))
    os.write(2, b"kept")
    assert capfd.readouterr().err == "kept"


def test_more_pixels_than_pillow_opens_are_reported(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with pytest.raises(DamagedImage, match="it has more pixels than are decoded"):
        decode(encoded(Image.new("RGB", (40, 20)), "TIFF"))


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_photograph_of_200_megapixels_is_no_attack(decoder, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.new("RGB", (640, 480)), "JPEG", exif=exif)
    size = struct.pack(">HH", 480, 640)
    assert data.count(size) == 1
    larger = data.replace(size, struct.pack(">HH", 12240, 16320))
    sides = (1530, 2040) if orientation == 1 else (2040, 1530)
    assert decode(larger, min_side=1024).shape == (3, *sides)


def test_a_lack_of_memory_is_no_damage(monkeypatch):
    def lack(*_, **__):
        raise MemoryError

    monkeypatch.setattr(pillow_decoder, "_pixels_of", lack)
    with pytest.raises(LocalError, match=r"^a\.bmp was not read \(Cannot allocate"):
        decode(encoded(picture(), "BMP"), name="a.bmp")


def test_a_row_that_pillow_has_no_memory_for_is_damage():
    data = encoded(Image.new("RGB", (40, 20)), "BMP")
    size = struct.pack("<ii", 40, 20)
    assert data.count(size) == 1
    with pytest.raises(DamagedImage, match="more than 33 million in a row"):
        decode(data.replace(size, struct.pack("<ii", 100_000_000, 1)))


def test_a_pillow_without_avif_is_reported(monkeypatch):
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    monkeypatch.setattr(pillow_decoder, "find_spec", lambda name: None)
    with pytest.raises(DamagedImage, match="this Pillow reads no AVIF: install"):
        decode(b"\0\0\0 ftypavif")


def test_the_reason_of_damage_is_given_in_words(monkeypatch):
    whole = encoded(picture(), "JPEG")
    with pytest.raises(DamagedImage, match="the JPEG file is truncated, damaged"):
        decode(whole[:20])

    def stumble(*_, **__):
        raise KeyError("palette")

    monkeypatch.setattr(pillow_decoder, "_pixels_of", stumble)
    with pytest.raises(DamagedImage, match=r"damaged \(KeyError: 'palette'\)"):
        decode(encoded(picture(), "BMP"))
    monkeypatch.undo()
    with pytest.raises(DamagedImage, match=r"^[^']*Token too long in file header"):
        decode(b"P6 999999999999 1 255 ")


def test_damage_stops_past_its_limit_with_the_list():
    damage = Damage(limit=2)
    for _ in range(3):  # the same image again, as every epoch meets it
        damage.record(DamagedImage("a.jpg", "cut short"))
    damage.record(DamagedImage("b.jpg", "empty"))
    assert len(damage) == 2
    assert damage.names == ("a.jpg", "b.jpg")
    with pytest.raises(
        UserError, match=r"(?s)3 images.*a\.jpg: cut.*b\.jpg.*c\.jpg"
    ) as e:
        damage.record(DamagedImage("c.jpg", "no image"))
    assert "or allow more with --max-damaged" in str(e.value)


@pytest.mark.parametrize(
    ("given", "limit"),
    [("1%", 10), ("50", 50), ("0", 0), ("0%", 0), ("0.5 %", 10), ("2.5%", 25)],
)
def test_a_limit_is_a_number_or_a_share(given, limit):
    assert damage_limit(given, 1000) == limit


@pytest.mark.parametrize("given", ["", "-1", "many", "101%", "1,5%", "1e3"])
def test_a_limit_that_is_neither(given):
    with pytest.raises(UserError, match=r"neither a number of images nor a share"):
        damage_limit(given, 1000)


def test_many_damaged_images_are_logged_up_to_a_number():
    logged = []
    damage = Damage(limit=1000, warn=logged.append)
    for number in range(300):
        damage.record(DamagedImage(f"{number}.jpg", "empty"))
    assert len(logged) == 101
    assert logged[-1] == "100 images are damaged; further ones are not logged."
    damage = Damage(limit=299)
    for number in range(299):
        damage.record(DamagedImage(f"{number}.jpg", "empty"))
    with pytest.raises(UserError, match=r"300 images.*\n(?s:.*)  and 280 more$"):
        damage.record(DamagedImage("299.jpg", "empty"))


def test_damage_counts_across_threads():
    damage = Damage(limit=1000)

    def record(first):
        for number in range(first, first + 100):
            damage.record(DamagedImage(str(number), "x"))

    threads = [threading.Thread(target=record, args=(50 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(damage) == 250


def test_the_decoder_in_use_has_a_name():
    assert decoder_name() in ("torchcodec", "torchvision", "pillow")


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_small_lossless_images_need_no_other_library(monkeypatch, kind):
    image = picture()
    data = encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    asked = []
    monkeypatch.setattr(decoding, "_fast_decoder", lambda: asked.append(kind))
    assert torch.equal(decode(data), pixels_of(image))
    assert not asked
    monkeypatch.setattr(decoding, "_SMALL_PIXELS", 24 * 40 - 1)
    assert torch.equal(decode(data), pixels_of(image))
    assert asked == [kind]


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (None, "NoneType"),
        (np.zeros((8, 8, 3), np.uint8), "ndarray"),
        (torch.zeros(3, 8, 8), r"torch.float32 of shape \(3, 8, 8\)"),
        (torch.zeros(8, 8, dtype=torch.uint8), r"torch.uint8 of shape \(8, 8\)"),
        (torch.zeros(1, 0, 8, dtype=torch.uint8), r"torch.uint8 of shape \(1, 0, 8\)"),
    ],
)
def test_what_a_source_reads_is_checked(read, found):
    with pytest.raises(UserError, match=f"reads x.png as {found}; its read"):
        decode(read, name="x.png")
