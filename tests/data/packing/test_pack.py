"""Packs hold every image, small and checked, and survive being killed."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from t2t.data.decoding import decode as decoding
from t2t.data.decoding.decode import decode
from t2t.data.packing import pack as packing
from t2t.data.packing import shard_writer
from t2t.data.packing.pack import pack
from t2t.data.sources import open_source, open_splits, shard_index
from t2t.errors import UserError


def photo(seed: int, height: int = 40, width: int = 60) -> Image.Image:
    rows = np.linspace(0, 3, height)[:, None, None]
    columns = np.linspace(0, 2, width)[None, :, None]
    values = 0.5 + 0.5 * np.sin(rows + columns + np.arange(3) + seed)
    return Image.fromarray((values * 255).astype(np.uint8))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two classes of twelve JPEGs, 40 × 60."""
    root = tmp_path / "images"
    for number in range(24):
        path = root / ("cat" if number % 2 else "dog") / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number).save(path, quality=95)
    return root


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("decodes_smaller", [False, True])
def test_a_pack_holds_every_image_smaller(
    folder, tmp_path, monkeypatch, decodes_smaller
):
    if decodes_smaller:  # at once to the size that is asked for
        monkeypatch.setattr(decoding, "_fast_decoder", lambda: None)
    steps = []
    result = pack(
        folder,
        tmp_path / "packed",
        short_side=20,
        shard_size=8,
        num_workers=2,
        val_fraction=0.25,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert result.num_images == 24
    assert result.num_shards == 4  # 18 to train on, 6 to judge by
    assert result.damaged == ()
    assert result.bytes_after < result.bytes_before
    assert steps[-1] == (24, 24)
    assert [done for done, _ in steps] == list(range(1, 25))
    assert not list((tmp_path / "packed").glob("*.part"))

    before = open_splits(folder, val_fraction=0.25)
    after = open_splits(tmp_path / "packed")
    assert after.train.classes == before.train.classes
    assert len(after.train) == 18
    assert np.bincount(after.val.labels).tolist() == [3, 3]
    for number in range(18):
        assert decode(after.train.read(number)).shape == (3, 20, 30)


def test_a_packed_image_is_the_image(tmp_path):
    root = tmp_path / "images"
    for number, name in enumerate(("a", "a", "b", "b")):
        path = root / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number, 80, 80).save(path)
    pack(root, tmp_path / "packed", short_side=40, quality=95, val_fraction=0.5)
    packed = open_splits(tmp_path / "packed")
    for source in (packed.train, packed.val):
        for index in range(len(source)):
            pixels = decode(source.read(index))
            errors = []
            for number in range(4):
                small = photo(number, 80, 80).resize((40, 40), Image.Resampling.BICUBIC)
                expected = torch.from_numpy(np.array(small)).permute(2, 0, 1)
                errors.append((pixels.int() - expected.int()).abs().float().mean())
            nearest = int(np.argmin(errors))
            assert errors[nearest] < 3
            assert source.labels[index] == (0 if nearest < 2 else 1)


@pytest.mark.parametrize("short_side", [None, 40, 64])
def test_small_images_keep_their_bytes(folder, tmp_path, short_side):
    pack(folder, tmp_path / "packed", short_side=short_side)
    before = open_splits(folder)
    after = open_splits(tmp_path / "packed")
    for source, packed in ((before.train, after.train), (before.val, after.val)):
        given = {source.read(n): source.labels[n] for n in range(len(source))}
        found = {packed.read(n): packed.labels[n] for n in range(len(packed))}
        assert given == found


def test_decoded_images_are_kept_exactly(tmp_path):
    result = pack("digits", tmp_path / "packed", shard_size=1000)
    assert result.num_images == 1797
    before, after = (
        open_source("digits", "val"),
        open_source(tmp_path / "packed", "val"),
    )
    given = sorted((before.read(n).tolist(), before.labels[n]) for n in range(360))
    found = sorted(
        (decode(after.read(n), channels=1).tolist(), after.labels[n])
        for n in range(360)
    )
    assert given == found


def test_shards_are_tar_files_as_webdataset_reads_them(folder, tmp_path):
    pack(folder, tmp_path / "packed", short_side=None, shard_size=12)
    source = open_splits(tmp_path / "packed").train
    members = []
    for number in range(2):
        with tarfile.open(tmp_path / "packed" / f"train-{number:06d}.tar") as tar:
            members += [(m.name, tar.extractfile(m).read()) for m in tar]
    images, labels = members[::2], members[1::2]
    assert [name for name, _ in images] == [f"{n:09d}.jpg" for n in range(len(source))]
    assert [name for name, _ in labels] == [f"{n:09d}.cls" for n in range(len(source))]
    assert [int(text) for _, text in labels] == source.labels.tolist()
    assert [data for _, data in images] == [source.read(n) for n in range(len(source))]
    # Classes are mixed, so that reading in order is reading at random.
    assert source.labels.tolist() != sorted(source.labels.tolist())


def test_the_index_of_a_pack_is_what_its_shard_says(folder, tmp_path):
    pack(folder, tmp_path / "packed", shard_size=7)
    kept = open_splits(tmp_path / "packed").train
    for path in (tmp_path / "packed").glob("*.index.json"):
        path.unlink()
    rebuilt = open_splits(tmp_path / "packed").train
    assert kept.labels.tolist() == rebuilt.labels.tolist()
    assert [kept.read(n) for n in range(9)] == [rebuilt.read(n) for n in range(9)]


def test_as_many_threads_pack_as_there_are_cores_for_them(
    folder, tmp_path, monkeypatch
):
    num_threads = []

    def write(shard, settings, num_workers, *given):
        num_threads.append(num_workers)
        return shard_writer.write_shard(shard, settings, num_workers, *given)

    monkeypatch.setattr(packing, "num_cores", lambda: 3)
    monkeypatch.setattr(packing, "write_shard", write)
    pack(folder, tmp_path / "packed")
    assert num_threads == [3, 3]


def test_few_images_are_in_memory_before_they_are_written(
    folder, tmp_path, monkeypatch
):
    begun, most = [], []

    def prepare(source, index, settings):
        begun.append(index)
        return prepared(source, index, settings)

    def advance(done, total):
        time.sleep(0.01)  # a slow disk
        most.append(len(begun) - done)

    prepared = shard_writer.prepared
    monkeypatch.setattr(shard_writer, "prepared", prepare)
    pack(folder, tmp_path / "packed", num_workers=1, progress=advance)
    assert max(most) <= shard_writer._NUM_AHEAD


def test_a_copied_pack_keeps_its_index(folder, tmp_path, monkeypatch):
    pack(folder, tmp_path / "packed")
    for path in (tmp_path / "packed").glob("*.tar"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(shard_index, "build_index", None)
    assert len(open_splits(tmp_path / "packed").train) == 22


def test_a_pack_goes_on_where_it_stopped(folder, tmp_path, monkeypatch):
    def stop(done, total):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(folder, tmp_path / "packed", shard_size=5, progress=stop)
    names = sorted(p.name for p in (tmp_path / "packed").glob("*.tar*"))
    assert [n for n in names if n.endswith(".tar")] == [
        "train-000000.tar",
        "train-000001.tar",
    ]
    with pytest.raises(UserError, match="2 of 5 train shards: repeat"):
        open_splits(tmp_path / "packed")
    result = pack(folder, tmp_path / "packed", shard_size=5)
    assert result.num_resumed == 2
    assert result.num_images == 24
    whole = pack(folder, tmp_path / "other", shard_size=5)
    assert whole.bytes_after == result.bytes_after
    for path in (tmp_path / "other").glob("*.tar"):
        assert path.read_bytes() == (tmp_path / "packed" / path.name).read_bytes()


def test_a_pack_of_other_files_does_not_go_on(folder, tmp_path):
    def stop(done, total):
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(folder, tmp_path / "packed", shard_size=5, progress=stop)
    # As many of each class as before, but each in another's place.
    first = min((folder / "cat").iterdir())
    first.rename(folder / "cat" / "zzz.jpg")
    with pytest.raises(UserError, match="a pack with another contents: give the same"):
        pack(folder, tmp_path / "packed", shard_size=5)
    (folder / "cat" / "zzz.jpg").rename(first)
    assert pack(folder, tmp_path / "packed", shard_size=5).num_images == 24


def test_a_killed_pack_goes_on(folder, tmp_path):
    program = (
        "import sys, time; from t2t.data.packing.pack import pack\n"
        "def slow(done, total):\n"
        "    print(done, flush=True); time.sleep(0.02)\n"
        "pack(sys.argv[1], sys.argv[2], shard_size=5, progress=slow)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(tmp_path / "packed")],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout as lines:
        for line in lines:
            if int(line) >= 8:
                break
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    result = pack(folder, tmp_path / "packed", shard_size=5)
    assert result.num_resumed == 1
    assert result.num_images == 24
    assert not list((tmp_path / "packed").glob("*.part"))
    assert len(open_splits(tmp_path / "packed").train) == 22


def test_a_damaged_shard_is_written_again(folder, tmp_path):
    pack(folder, tmp_path / "packed", shard_size=8)
    shard = tmp_path / "packed" / "train-000001.tar"
    good = shard.read_bytes()
    shard.write_bytes(good[:700] + b"X" + good[701:])
    result = pack(folder, tmp_path / "packed", shard_size=8)
    assert result.num_resumed == result.num_shards - 1
    assert shard.read_bytes() == good


def test_what_reads_back_differently_is_not_kept(folder, tmp_path, monkeypatch):
    class Liar(shard_writer.LocalFile):
        def read(self, offset, size):
            return bytes(size)

    monkeypatch.setattr(shard_writer, "LocalFile", Liar)
    with pytest.raises(UserError, match="reads back differently"):
        pack(folder, tmp_path / "packed")
    assert sorted(p.name for p in (tmp_path / "packed").iterdir()) == [
        ".pack.lock",
        "pack.json",
    ]


@pytest.mark.parametrize("num_files", [0, 1])
def test_a_full_disk_is_one_sentence(folder, tmp_path, monkeypatch, num_files):
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > num_files:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shard_writer.os, "fsync", full)
        with pytest.raises(UserError, match=r"No space left.*run the (same )?command"):
            pack(folder, tmp_path / "packed")
    assert pack(folder, tmp_path / "packed").num_images == 24


def test_damaged_images_are_left_out_and_named(folder, tmp_path):
    damaged = [folder / "cat" / "01.jpg", folder / "dog" / "02.jpg"]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:200])
    result = pack(folder, tmp_path / "packed", shard_size=6, max_damaged="2")
    assert sorted(each.name for each in result.damaged) == [str(p) for p in damaged]
    assert {each.reason for each in result.damaged} == {"Truncated File Read"}
    assert result.num_images == 22
    again = pack(folder, tmp_path / "packed", shard_size=6, max_damaged="2")
    assert again.num_resumed == again.num_shards
    assert list(map(str, again.damaged)) == list(map(str, result.damaged))
    for place in ("packed", "other"):
        with pytest.raises(UserError, match="2 images cannot be read and 1 may be"):
            pack(folder, tmp_path / place, shard_size=6, max_damaged="1")


def test_a_strip_longer_than_a_jpeg_can_be_is_left_out(folder, tmp_path):
    strip = folder / "cat" / "strip.png"
    Image.new("L", (140_000, 2)).save(strip)
    result = pack(folder, tmp_path / "packed", short_side=1)
    assert [each.name for each in result.damaged] == [str(strip)]
    assert "cannot be stored as a JPEG" in result.damaged[0].reason


def test_a_pack_without_images_is_not_left_behind(folder, tmp_path):
    for path in folder.glob("*/*.jpg"):
        path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"No image for train or val can be read.*jpg:"):
        pack(folder, tmp_path / "packed", shard_size=6, max_damaged="100%")
    assert not (tmp_path / "packed").exists()


def test_a_source_is_not_packed_into_itself(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    for source, place in [
        (folder, folder / "packed"),
        (folder, folder),
        (tmp_path / "link", folder / "packed"),
        (folder, folder.parent),
    ]:
        with pytest.raises(UserError, match=r"contain one another.*outside the data"):
            pack(source, place)
    assert sorted(path.name for path in folder.iterdir()) == ["cat", "dog"]


def test_pictures_of_every_kind(tmp_path):
    root = tmp_path / "images"
    kinds = [
        ("PNG", "RGBA"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("JPEG", "L"),
        ("TIFF", "L"),
        ("PPM", "RGB"),
    ]
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for number, (kind, mode) in enumerate(kinds):
            image = photo(number).convert(mode)
            image.save(root / name / f"{kind}.{kind.lower()}", kind)
    pack(root, tmp_path / "packed", short_side=24)
    pack(root, tmp_path / "kept", short_side=None)
    for place, shape in (("packed", (3, 24, 36)), ("kept", (3, 40, 60))):
        for path in (tmp_path / place).glob("*.index.json"):
            path.unlink()  # what an image is must be seen by its name in the tar
        source = open_splits(tmp_path / place).train
        assert len(source) == 10
        for index in range(len(source)):
            assert decode(source.read(index)).shape == shape


def test_destinations_that_are_refused(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="contains other files"):
        pack(folder, tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        pack(folder, tmp_path / "file")
    pack(folder, tmp_path / "packed", short_side=32)
    with pytest.raises(UserError, match="another short_side: give the same"):
        pack(folder, tmp_path / "packed", short_side=16)
    (folder / "cat" / "more.jpg").write_bytes((folder / "cat" / "01.jpg").read_bytes())
    with pytest.raises(UserError, match="another images, contents"):
        pack(folder, tmp_path / "packed", short_side=32)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"short_side": 0}, "short side cannot be 0"),
        ({"quality": 101}, "quality 101"),
        ({"shard_size": 0}, "shard cannot have 0"),
    ],
)
def test_numbers_that_are_refused(folder, tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        pack(folder, tmp_path / "packed", **options)


def test_a_second_pack_at_the_same_time_is_refused(folder, tmp_path):
    def pack_again(done, total):
        with pytest.raises(UserError, match="Another process is packing"):
            pack(folder, tmp_path / "packed")

    pack(folder, tmp_path / "packed", progress=pack_again)


def test_a_pack_copied_in_part_is_refused(folder, tmp_path):
    pack(folder, tmp_path / "packed", shard_size=5)
    (tmp_path / "packed" / "train-000002.tar").unlink()
    with pytest.raises(UserError, match="4 of 5 train shards"):
        open_splits(tmp_path / "packed")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"images": 3}', "\xff"])
def test_a_damaged_description_is_one_sentence(folder, tmp_path, text):
    pack(folder, tmp_path / "packed")
    (tmp_path / "packed" / "pack.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"packed/pack\.json is damaged.*pack again"):
        open_splits(tmp_path / "packed")
    with pytest.raises(UserError, match=r"packed/pack\.json is damaged.*pack again"):
        pack(folder, tmp_path / "packed")


def test_a_pack_says_what_it_is(folder, tmp_path):
    pack(folder, tmp_path / "packed", short_side=32, quality=80)
    description = json.loads((tmp_path / "packed" / "pack.json").read_text())
    assert description["classes"] == ["cat", "dog"]
    assert description["short_side"] == 32
    assert description["images"] == {"train": 22, "val": 2}


def unlabelled_data(kind: str, root: Path, folder: Path) -> Path:
    """The fixture's images without labels, as a folder, parquet or tar shards."""
    files = sorted(folder.rglob("*.jpg"))
    path = root / f"unlabelled-{kind}"
    path.mkdir()
    if kind == "folder":
        for file in files:
            (path / file.name).write_bytes(file.read_bytes())
    elif kind == "parquet":
        rows = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
        pq.write_table(pa.table({"image": rows}), path / "all.parquet")
    else:
        with tarfile.open(path / "all.tar", "w") as tar:
            for file in files:
                tar.add(file, file.name)
    return path


@pytest.mark.parametrize("kind", ["folder", "parquet", "tar"])
def test_images_without_labels_are_packed(folder, tmp_path, kind):
    data, packed = unlabelled_data(kind, tmp_path, folder), tmp_path / "packed"
    with pytest.raises(UserError, match=r"without labels, add --unlabelled\.$"):
        pack(data, packed)
    assert not packed.exists()
    for num_resumed in (0, 3):
        result = pack(data, packed, short_side=20, shard_size=12, labels=False)
        assert (result.num_images, result.num_shards) == (24, 3)
        assert result.num_resumed == num_resumed
        assert not result.is_labelled
    with tarfile.open(packed / "train-000000.tar") as tar:
        assert {Path(name).suffix for name in tar.getnames()} == {".jpg"}

    with pytest.raises(UserError, match="has no labels: add them, or train with a"):
        open_splits(packed)
    for file in packed.glob("*.index.json"):  # as after a copy of the shards alone
        file.unlink()
    before = open_splits(data, labels=False)
    after = open_splits(packed, labels=False)
    assert (len(after.train), len(after.val)) == (len(before.train), len(before.val))
    assert not after.train.is_labelled
    assert decode(after.train.read(0)).shape == (3, 20, 30)


def test_images_that_a_table_leaves_out_are_packed(folder, tmp_path):
    data = unlabelled_data("folder", tmp_path, folder)
    names = sorted(path.name for path in data.iterdir())[:6]
    rows = [
        f"{name},{'cat' if place % 2 else 'dog'}" for place, name in enumerate(names)
    ]
    (data / "labels.csv").write_text("\n".join(["path,label", *rows]))
    assert pack(data, tmp_path / "listed").num_images == 6
    result = pack(data, tmp_path / "all", labels=False)
    assert result.num_images == len([*data.glob("*.jpg")])
    assert not result.is_labelled


def test_labels_that_every_image_has_are_kept(folder, tmp_path):
    result = pack(folder, tmp_path / "packed", labels=False)
    assert result.is_labelled
    assert open_splits(tmp_path / "packed").train.classes == ("cat", "dog")


def test_a_damaged_folder_is_not_taken_for_images_without_labels(tmp_path):
    with pytest.raises(UserError) as caught:
        pack(tmp_path / "missing", tmp_path / "packed")
    assert "--unlabelled" not in str(caught.value)
