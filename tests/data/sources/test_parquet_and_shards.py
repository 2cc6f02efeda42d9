"""Parquet files and tar shards, local and remote, in any order."""

import io
import json
import os
import pickle
import resource
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from t2t.data.decoding.decode import DamagedImage, decode
from t2t.data.sources import (
    FileSource,
    ParquetSource,
    ShardSource,
    open_source,
    open_splits,
    parquet,
    shard_index,
    shards,
    storage,
)
from t2t.data.sources.process_cache import ProcessCache
from t2t.errors import LocalError, UserError


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 6), (value, value, value)).save(buffer, "PNG")
    return buffer.getvalue()


def brightness(source, index: int) -> int:
    return int(decode(source.read(index))[0, 0, 0])


def write_parquet(
    path: Path, values, *, names=("cat", "dog"), column="image", group=4, labels=None
) -> Path:
    """One row a value, whose picture has that brightness and label value % 2."""
    path.parent.mkdir(parents=True, exist_ok=True)
    features = {column: {"_type": "Image"}}
    if names:
        features["label"] = {"names": list(names), "_type": "ClassLabel"}
    table = pa.table(
        {
            column: [{"bytes": png(v), "path": f"{v}.png"} for v in values],
            "label": labels if labels is not None else [v % 2 for v in values],
        }
    )
    info = json.dumps({"info": {"features": features}})
    table = table.replace_schema_metadata({"huggingface": info} if names else None)
    pq.write_table(table, path, row_group_size=group)
    return path


def write_tar(
    path: Path, values, *, label="cls", suffix=".png", names=None, mode="w"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for value in values:
            text = names[value % 2] if names else str(value % 2)
            if label == "json":
                text = json.dumps({"caption": "x", "label": value % 2})
            members = {f"{value:04d}{suffix}": png(value)}
            if label:
                members[f"{value:04d}.{label}"] = text.encode()
            for name, data in members.items():
                member = tarfile.TarInfo(f"folder/{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("T2T_CACHE", str(folder))
    return folder


def test_parquet_splits_and_class_names(tmp_path):
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", range(10))
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", range(10, 16))
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", range(20, 24))
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.val.classes == ("cat", "dog")
    assert splits.train.labels.tolist() == [n % 2 for n in range(16)]
    assert [brightness(splits.train, n) for n in (15, 0, 9, 10)] == [15, 0, 9, 10]
    assert splits.train.name(12).endswith("train-00001-of-00002.parquet[2]")
    assert [brightness(splits.val, n) for n in range(4)] == [20, 21, 22, 23]


def test_parquet_columns_by_other_names(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", range(8), column="img", names=None)
    source = open_source(path, "all")
    assert source.classes == ("0", "1")
    assert brightness(source, 5) == 5
    table = pa.table({"image": [png(1), png(2)], "label": ["dog", "ant"]})
    pq.write_table(table, tmp_path / "y.parquet")
    source = open_source(tmp_path / "y.parquet", "all")
    assert source.classes == ("ant", "dog")
    assert source.labels.tolist() == [1, 0]
    assert brightness(source, 1) == 2
    info = {"features": {"breed": {"names": ["pug", "tan"], "_type": "ClassLabel"}}}
    note = {"huggingface": json.dumps({"info": info})}
    table = table.append_column("breed", [[1, 0]]).replace_schema_metadata(note)
    pq.write_table(table, tmp_path / "z.parquet")
    source = open_source(tmp_path / "z.parquet", "all")
    assert source.classes == ("pug", "tan")
    assert source.labels.tolist() == [1, 0]


def test_parquet_images_in_files_beside_it(tmp_path):
    (tmp_path / "1.png").write_bytes(png(77))
    table = pa.table(
        {
            "image": [
                {"bytes": None, "path": "1.png"},
                {"bytes": png(3), "path": None},
            ],
            "label": [0, 1],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet", "all")
    assert [brightness(source, n) for n in (0, 1)] == [77, 3]
    table = pa.table({"image": [{"path": "a\0b"}, {"path": "c"}], "label": [0, 1]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DamagedImage, match=r"x\.parquet\[0\]: embedded null"):
        open_source(tmp_path / "x.parquet", "all").read(0)


def test_parquet_keeps_only_so_many_row_groups(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", range(40), group=4)
    whole = ParquetSource([str(path)])
    assert whole.blocks is None
    largest = max(
        pq.ParquetFile(path).metadata.row_group(n).total_byte_size for n in range(10)
    )
    small = ParquetSource([str(path)], cache_bytes=2 * largest)
    order = np.random.default_rng(0).permutation(40)
    assert [brightness(small, int(n)) for n in order] == order.tolist()
    assert sum(column.nbytes for column in small._groups.values.values()) <= 2 * largest
    assert 2 <= len(small._groups.values) < 10
    assert small.num_blocks_at_once == 2
    assert small.blocks.tolist() == [n // 4 for n in range(40)]


def test_parquet_is_read_by_threads_and_after_pickling(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", range(40), group=4)
    source = pickle.loads(pickle.dumps(ParquetSource([str(path)], cache_bytes=1)))
    found = {}

    def read(first):
        for number in range(first, 40, 4):
            found[number] = brightness(source, number)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number for number in range(40)}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_sources_outlive_a_fork(tmp_path, kind):
    if kind == "parquet":
        source = ParquetSource([str(write_parquet(tmp_path / "x.parquet", range(8)))])
    else:
        source = ShardSource([str(write_tar(tmp_path / "x.tar", range(8)))])
    source.read(0)
    caches = [each for each in vars(source).values() if isinstance(each, ProcessCache)]
    for cache in caches:  # as a thread may hold them at the moment of the fork
        cache._lock.acquire()
    child = os.fork() if hasattr(os, "fork") else None
    if child == 0:
        os._exit(0 if source.read(5)[:4] == b"\x89PNG" else 1)
    for cache in caches:
        cache._lock.release()
    if child is not None:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parquet_that_cannot_be_used(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "label": [0]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="columns text, label and none is the image"):
        open_splits(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        open_splits(tmp_path / "b.parquet")
    write_parquet(tmp_path / "c.parquet", range(4), labels=[0, 1, 2, -1])
    with pytest.raises(UserError, match="label -1"):
        open_splits(tmp_path / "c.parquet")
    write_parquet(tmp_path / "d.parquet", range(4), labels=[0, 1, None, 1])
    with pytest.raises(UserError, match=r"Image 2 .* no label"):
        open_splits(tmp_path / "d.parquet")
    none = pq.read_table(tmp_path / "d.parquet").slice(0, 0)
    pq.write_table(none, tmp_path / "h.parquet")
    with pytest.raises(UserError, match=r"h\.parquet holds no images"):
        open_splits(tmp_path / "h.parquet")
    write_parquet(tmp_path / "e.parquet", range(4), names=("a", "b", "c"))
    with pytest.raises(UserError, match="no training image of the class 'c'"):
        open_splits(tmp_path / "e.parquet")
    write_parquet(tmp_path / "f" / "test.parquet", range(4))
    with pytest.raises(UserError, match="nothing to train on"):
        open_splits(tmp_path / "f")
    write_parquet(tmp_path / "g" / "train.parquet", range(4))
    write_parquet(tmp_path / "g" / "test.parquet", range(4), names=("dog", "cat"))
    with pytest.raises(UserError, match="numbers the same classes differently"):
        open_splits(tmp_path / "g")


def test_parquet_whose_columns_are_not_clear(tmp_path):
    path = tmp_path / "a.parquet"
    twice = pa.Table.from_arrays([[png(0)], [png(1)], [0]], ["image", "image", "label"])
    pq.write_table(twice, path)
    with pytest.raises(UserError, match="image, image, label and several are the"):
        open_splits(path)
    for names in (5, [5, 6], {"0": "cat", "1": "dog"}):
        write_parquet(path, range(4))
        feature = {"label": {"names": names, "_type": "ClassLabel"}}
        note = {"huggingface": json.dumps({"info": {"features": feature}})}
        pq.write_table(pq.read_table(path).replace_schema_metadata(note), path)
        with pytest.raises(UserError, match=r"names its classes .* a list of strings"):
            open_splits(path)
    (tmp_path / "b" / "x.parquet").mkdir(parents=True)
    with pytest.raises(UserError, match=r"b holds no \.parquet files"):
        open_splits(tmp_path / "b")


@pytest.mark.parametrize(
    "labels",
    [[0.5, 1.0], [float("nan"), 1.0], [[0], [1]], [b"a", b"b"], [10**12, 1]],
)
def test_labels_that_are_no_class(tmp_path, labels):
    write_parquet(tmp_path / "a.parquet", range(4), names=None, labels=labels * 2)
    with pytest.raises(UserError, match=r"Image 0 of .* has the label .*: give every"):
        open_splits(tmp_path / "a.parquet")


def test_whole_labels_of_any_type(tmp_path):
    for kind in (pa.float32(), pa.uint64(), pa.decimal128(10), pa.int8()):
        labels = pa.array([0, 1, 0, 1], pa.int32()).cast(kind)
        write_parquet(tmp_path / "a.parquet", range(4), names=None, labels=labels)
        source = open_source(tmp_path / "a.parquet", "all")
        assert source.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "images",
    [
        ["a.png", "b.png"],
        [[1, 2], [3]],
        [{"file": "a.png"}] * 2,
        [{"bytes": 3}] * 2,
        [{"bytes": b"", "path": 3}] * 2,
    ],
)
def test_a_column_without_image_files_is_refused(tmp_path, images):
    table = pa.table({"image": images, "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match="should hold the bytes of image files"):
        open_source(tmp_path / "a.parquet", "all")


@pytest.mark.parametrize("images", [[{"bytes": None}], [{"path": None}], [None]])
def test_an_image_that_is_null_is_damaged(tmp_path, images):
    kind = pa.struct([(name, pa.binary()) for name in images[0] or ("bytes", "path")])
    table = pa.table({"image": pa.array(images * 2, kind), "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet", "all")
    with pytest.raises(DamagedImage, match="the file is empty"):
        decode(source.read(0))


def test_files_of_other_classes_are_not_taken_together(tmp_path):
    write_parquet(tmp_path / "pets" / "train.parquet", range(4))
    write_parquet(tmp_path / "ships" / "train.parquet", range(4), names=("a", "b"))
    with pytest.raises(UserError, match=r"ships.* has other columns or classes"):
        open_splits(tmp_path)


def test_numbered_validation_images_need_not_be_of_every_class(tmp_path):
    labels = {"train": [0, 1, 2, 0, 1, 2], "val": [0, 1, 1, 0, 0, 0]}
    for split, some in labels.items():
        path = tmp_path / f"{split}.parquet"
        write_parquet(path, range(6), names=None, labels=some)
    val = open_splits(tmp_path).val
    assert val.classes == ("0", "1", "2")
    assert val.labels.tolist() == labels["val"]
    write_parquet(tmp_path / "val.parquet", range(6))
    with pytest.raises(UserError, match="'cat', 'dog' only for validation"):
        open_splits(tmp_path)


def test_what_cannot_be_read_is_named(tmp_path):
    shard = write_tar(tmp_path / "x.tar", range(4))
    source = open_source(str(shard), "all")
    os.truncate(shard, 1500)
    with pytest.raises(DamagedImage, match=r"x\.tar at byte \d+: .* ends before"):
        source.read(3)
    assert source.name(0).endswith("x.tar:folder/0000.png")
    path = write_parquet(tmp_path / "x.parquet", range(8), group=4)
    whole = path.read_bytes()
    source = open_source(path, "all")
    # Inside the first row group's images: the footer at the end stays good.
    path.write_bytes(whole[:10] + bytes(300) + whole[310:])
    with pytest.raises(DamagedImage, match=r"x\.parquet\[1\]"):
        decode(source.read(1), name=source.name(1))


def test_parquet_that_is_cut_short_while_open(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", range(4000), group=1000)
    source = open_source(path, "all")
    os.truncate(path, 8192)
    with pytest.raises(DamagedImage, match=r"x\.parquet\[3999\]"):
        source.read(3999)


@settings(deadline=None, max_examples=60)
@example([(0.875, 47)])  # in what Hugging Face notes
@example([(0.44187359759936984, 0)])  # fewer rows
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1))
def test_any_damage_of_parquet_is_read_or_named(tmp_path_factory, changes):
    path = write_parquet(tmp_path_factory.mktemp("x") / "x.parquet", range(6), group=2)
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[4 + int(place * (len(data) - 9))] = value
    path.write_bytes(data)
    try:
        source = open_source(path, "all")
    except UserError:
        return
    for index in range(len(source)):
        with suppress(DamagedImage):
            source.read(index)


def test_missing_parquet_files_are_reported(tmp_path):
    write_parquet(tmp_path / "train-00000-of-00003.parquet", range(8))
    assert "2 of 3 train files missing" in open_splits(tmp_path).description


def test_shards_of_a_folder(tmp_path):
    write_tar(tmp_path / "train-000.tar", range(6))
    write_tar(tmp_path / "train-001.tar", range(6, 12))
    write_tar(tmp_path / "val-000.tar", range(20, 24))
    (tmp_path / "classnames.txt").write_text("cat\ndog\n")
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert splits.train.labels.tolist() == [0, 1] * 6
    assert [brightness(splits.train, n) for n in (11, 0, 6)] == [11, 0, 6]
    assert splits.train.name(7) == f"{tmp_path}/train-001.tar:folder/0007.png"
    assert [brightness(splits.val, n) for n in range(4)] == [20, 21, 22, 23]
    copy = pickle.loads(pickle.dumps(splits.train))
    assert copy.read(3) == splits.train.read(3)


@pytest.mark.parametrize("label", ["cls", "json"])
def test_shards_by_a_pattern(tmp_path, label):
    for number in range(3):
        values = range(4 * number, 4 * number + 4)
        write_tar(tmp_path / f"part-{number:02d}.tar", values, label=label)
    splits = open_splits(f"{tmp_path}/part-{{00..02}}.tar", val_fraction=0.25)
    assert len(splits.train) == 9
    assert len(splits.val) == 3
    assert splits.train.classes == ("0", "1")
    whole = open_source(f"{tmp_path}/part-{{00..02}}.tar", "all")
    assert [brightness(whole, n) for n in range(12)] == list(range(12))


def test_shards_whose_labels_are_names(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(4), names=("zebra", "ant"))
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("folder/0003.json"))  # which tells no label
    source = open_source(str(path), "all")
    assert source.classes == ("ant", "zebra")
    assert source.labels.tolist() == [1, 0, 1, 0]


def test_labels_that_are_no_utf_8_stay_apart(tmp_path):
    names = [os.fsdecode(b"caf" + end) for end in (b"\xe8", b"\xe9")]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(4):
            label = os.fsencode(names[number % 2])
            for suffix, data in (("png", png(number)), ("cls", label)):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    for _ in range(2):  # the second time from the index that was kept
        source = open_source(str(path), "all")
        assert source.classes == tuple(names)
        assert source.labels.tolist() == [0, 1, 0, 1]


def test_labels_that_look_like_numbers(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(4), names=["²", "--5"])
    assert open_source(str(path), "all").classes == ("--5", "²")
    write_tar(path, range(4), names=["5", "b"])
    assert open_source(str(path), "all").classes == ("5", "b")
    write_tar(path, range(4), names=["", "a"])
    with pytest.raises(UserError, match=r"0000\.png but no"):
        open_source(str(path), "all")


def test_a_list_of_classes_as_editors_save_it(tmp_path):
    write_tar(tmp_path / "x.tar", range(4))
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert open_source(tmp_path, "all").classes == ("cat", "dog")
    (tmp_path / "classes.txt").write_text("cat\nmöwe\n", encoding="latin-1")
    with pytest.raises(UserError, match=r"classes\.txt is not text in UTF-8"):
        open_source(tmp_path, "all")


def test_hidden_files_are_no_data(tmp_path):
    path = write_tar(tmp_path / "a" / "train.tar", range(4))
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("folder/._0003.png"))
    (tmp_path / "a" / "._train.tar").write_bytes(b"of a Mac")
    assert len(open_source(tmp_path / "a", "train")) == 4
    for name in ("cat", "dog"):
        (tmp_path / "b" / name).mkdir(parents=True)
        (tmp_path / "b" / name / "0.png").write_bytes(png(0))
    (tmp_path / "b" / "._old.tar").write_bytes(b"of a Mac")
    assert open_source(tmp_path / "b", "all").classes == ("cat", "dog")


def test_long_member_names(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(3), suffix="." + "a" * 150 + ".png")
    source = open_source(str(path), "all")
    assert [brightness(source, n) for n in range(3)] == [0, 1, 2]


def test_the_index_is_built_once_and_again_when_stale(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar", range(4))
    built = []
    build = shard_index.build_index
    monkeypatch.setattr(
        shard_index, "build_index", lambda *a: built.append(1) or build(*a)
    )
    for _ in range(2):
        assert len(open_source(str(path), "all")) == 4
    assert len(built) == 1
    assert (tmp_path / "x.tar.index.json").is_file()
    write_tar(path, range(6))
    assert len(open_source(str(path), "all")) == 6
    assert len(built) == 2
    (tmp_path / "x.tar.index.json").write_text("{ damaged")
    assert len(open_source(str(path), "all")) == 6
    assert len(built) == 3


def test_the_index_of_a_folder_one_may_not_write_to(
    tmp_path, monkeypatch, private_cache
):
    path = write_tar(tmp_path / "x.tar", range(4))
    write = shard_index.write_atomically

    def refuse_here(place, data):
        if place.parent == tmp_path:
            raise PermissionError("read-only")
        write(place, data)

    monkeypatch.setattr(shard_index, "write_atomically", refuse_here)
    assert len(open_source(str(path), "all")) == 4
    assert len(list((private_cache / "indexes").iterdir())) == 1
    monkeypatch.setattr(shard_index, "build_index", None)
    assert len(open_source(str(path), "all")) == 4


def test_an_index_that_one_may_not_read_is_built_again(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar", range(4))
    assert len(open_source(str(path), "all")) == 4

    def refuse(place):
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(Path, "stat", lambda self, **_: refuse(self))
    assert len(shards.ShardSource([str(path)])) == 4


@pytest.mark.parametrize("shortened", ["offsets", "sizes", "labels"])
def test_an_index_edited_by_hand_is_named(tmp_path, shortened):
    path = write_tar(tmp_path / "x.tar", range(4))
    assert len(open_source(str(path), "all")) == 4
    place = tmp_path / "x.tar.index.json"
    content = json.loads(place.read_text())
    content[shortened].pop()
    place.write_text(json.dumps(content))
    said = rf"x\.tar\.index\.json has .*3 {shortened}.*: remove this file"
    with pytest.raises(UserError, match=said):
        open_source(str(path), "all")
    place.unlink()
    assert len(open_source(str(path), "all")) == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": 4},
        {"sizes": [[1]]},
        {"stamp": [], "sha256": "a pack's"},
        {"stamp": None, "sha256": "a pack's"},
    ],
)
def test_an_index_of_something_else_is_built_again(tmp_path, changed):
    path = write_tar(tmp_path / "x.tar", range(4))
    assert len(open_source(str(path), "all")) == 4
    place = tmp_path / "x.tar.index.json"
    written = place.read_text()
    place.write_text(json.dumps({**json.loads(written), **changed}))
    assert len(open_source(str(path), "all")) == 4
    assert place.read_text() == written


@pytest.mark.parametrize(
    ("write", "name"), [(write_tar, "x.tar"), (write_parquet, "x.parquet")]
)
def test_a_broken_link_is_reported(tmp_path, write, name):
    write(tmp_path / "a" / name, range(4))
    link = tmp_path / "a" / f"y{name}"
    link.symlink_to("nowhere")
    with pytest.raises(UserError, match=rf"no file .*y{name}|y{name} .*\(No such file"):
        open_splits(tmp_path / "a")
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(UserError, match=rf"y{name} .*\(Too many levels of symbolic"):
        open_splits(tmp_path / "a")


def test_remote_shards(tmp_path, monkeypatch):
    memory = fsspec.filesystem("memory")
    for name, values in (("train-0.tar", range(6)), ("val-0.tar", range(10, 14))):
        path = write_tar(tmp_path / name, values)
        memory.pipe(f"/bucket/{name}", path.read_bytes())
    try:
        for spec in ("memory://bucket", "memory://bucket/{train,val}-0.tar"):
            splits = open_splits(spec)
            assert splits.train.labels.tolist() == [0, 1] * 3
            assert [brightness(splits.train, n) for n in (5, 2)] == [5, 2]
            assert [brightness(splits.val, n) for n in range(4)] == [10, 11, 12, 13]
        assert "train-0.tar:folder/0001.png" in splits.train.name(1)
        # The index is kept here: the shards are not gone through again.
        monkeypatch.setattr(shard_index, "build_index", None)
        assert len(open_splits("memory://bucket").train) == 6
    finally:
        memory.rm("/bucket", recursive=True)


def test_an_index_beside_a_remote_shard_is_used(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar", range(6))
    open_source(str(path), "all")
    memory = fsspec.filesystem("memory")
    for name in ("x.tar", "x.tar.index.json"):
        memory.pipe(f"/uploaded/{name}", (tmp_path / name).read_bytes())
    build = shard_index.build_index
    monkeypatch.setattr(shard_index, "build_index", None)
    try:
        source = open_source("memory://uploaded/x.tar", "all")
        assert brightness(source, 4) == 4
        longer = write_tar(tmp_path / "y.tar", range(20)).read_bytes()
        memory.pipe("/uploaded/x.tar", longer)  # and not its index
        monkeypatch.setattr(shard_index, "build_index", build)
        assert len(open_source("memory://uploaded/x.tar", "all")) == 20
        with pytest.raises(OSError, match="ends before byte"):
            storage.open_storage("memory://uploaded/x.tar").read(len(longer) - 1, 2)
    finally:
        memory.rm("/uploaded", recursive=True)


def test_a_remote_shard_that_was_replaced_is_gone_through_again(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(4))
    assert open_source(f"file://{path}", "all").labels.tolist() == [0, 1, 0, 1]
    write_tar(path, range(1, 5))
    os.utime(path, (1, 1))
    assert open_source(f"file://{path}", "all").labels.tolist() == [1, 0, 1, 0]


class BrokenStream(io.BytesIO):
    """Ends as a request of aiohttp's does, with an error that is no OSError."""

    def read(self, size=-1):
        if self.tell() > 2000:
            raise RuntimeError("payload is not completed\nand more")
        return super().read(min(size, 1024))


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("open", r"x\.tar could not be read to its end \(payload is not completed\):"),
        ("cat_file", r"pack\.json cannot be read \(timed out\): is there a network\?"),
    ],
)
def test_a_network_that_fails_while_shards_are_opened(
    tmp_path, monkeypatch, method, sentence
):
    data = write_tar(tmp_path / "x.tar", range(40)).read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe("/lost/x.tar", data)
    monkeypatch.setattr(storage, "PAUSES", ())

    def broken(self, *arguments, **keywords):
        if method == "cat_file":
            raise TimeoutError("timed out")
        return BrokenStream(data)

    monkeypatch.setattr(type(memory), method, broken)
    try:
        with pytest.raises(UserError, match=sentence) as told:
            open_splits("memory://lost")
        assert "\n" not in str(told.value)
    finally:
        monkeypatch.undo()
        memory.rm("/lost", recursive=True)


def test_shards_that_cannot_be_used(tmp_path):
    write_tar(tmp_path / "a.tar", range(3), label=None)
    with pytest.raises(UserError, match=r"image folder/0000.png but no .*\.cls"):
        open_splits(str(tmp_path / "a.tar"))
    write_tar(tmp_path / "b.tar", [])
    with pytest.raises(UserError, match="holds no images"):
        open_splits(str(tmp_path / "b.tar"))
    (tmp_path / "c.tar").write_bytes(b"\x1f\x8b" + bytes(3000))
    with pytest.raises(UserError, match="not an uncompressed tar"):
        open_splits(str(tmp_path / "c.tar"))
    with pytest.raises(UserError, match=r"no file .*d\.tar"):
        open_splits(str(tmp_path / "d.tar"))
    with pytest.raises(UserError, match=r"no file .*d-1\.tar"):
        open_splits(str(tmp_path / "d-{1..2}.tar"))
    with pytest.raises(UserError, match="cannot be reached"):
        open_splits("nonsense://x/y.tar")
    with pytest.raises(UserError, match="memory://nowhere"):
        open_splits("memory://nowhere")


def test_a_shard_that_ends_too_early_is_refused(tmp_path):
    whole = write_tar(tmp_path / "whole.tar", range(6)).read_bytes()
    header = whole.index(b"folder/0003.png")
    damaged = bytearray(whole)
    damaged[header + 150] ^= 1
    for data in (damaged, whole[: header + 100], whole + whole):
        path = tmp_path / "x.tar"
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"x\.tar is damaged at byte \d+, or"):
            open_source(str(path), "all")
    path.write_bytes(whole[: whole.rindex(b"1") + 512])  # no zeros at the end
    assert len(open_source(str(path), "all")) == 6


def test_images_in_shards_that_are_not_read_are_named(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(6))
    write_tar(path, [7], suffix=".heic", mode="a")
    write_tar(path, [9], suffix=".heic", label=None, mode="a")
    write_tar(path, [9], mode="a")  # the same sample, in a kind that is read
    for _ in range(2):  # the second time by the index
        source = open_source(str(path), "all")
        assert [brightness(source, n) for n in range(7)] == [0, 1, 2, 3, 4, 5, 9]
        note = f"{path}:folder/0007.heic is skipped: this format is not supported"
        assert source.notes == (f"{note}; convert it to JPEG or PNG.",)


def test_samples_of_one_key_are_not_lost(tmp_path):
    path = write_tar(tmp_path / "x.tar", [3])
    write_tar(path, [3], mode="a")
    with pytest.raises(UserError, match=r"0003\.png twice in a row"):
        open_source(str(path), "all")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_an_image_that_is_a_link_is_not_lost(tmp_path, kind):
    path = write_tar(tmp_path / "x.tar", range(4))
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("folder/0009.png")
        member.type, member.linkname = kind, "folder/0001.png"
        tar.addfile(member)
    with pytest.raises(UserError, match=r"0009\.png only as a link"):
        open_source(str(path), "all")


def test_a_folder_whose_name_is_no_text(tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9"))
    write_tar(folder / "train.tar", range(4))
    assert brightness(open_source(folder, "train"), 3) == 3
    write_parquet(tmp_path / "x.parquet", range(4)).rename(folder / "x.parquet")
    with pytest.raises(UserError, match="cannot be read as parquet"):
        open_source(folder / "x.parquet", "all")


def test_a_tar_beside_unpacked_folders_is_not_the_data(tmp_path):
    for split in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(2):
                (folder / f"{number}.png").write_bytes(png(number))
    write_tar(tmp_path / "download.tar", range(3))
    assert len(open_splits(tmp_path).train) == 4


@pytest.mark.parametrize("num", [1, 3])
def test_images_beside_class_folders_are_named(tmp_path, num):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(png(number))
    for number in range(num):
        (tmp_path / f"loose{number}.png").write_bytes(png(number))
    splits = open_splits(tmp_path)
    assert len(splits.train) + len(splits.val) == 6
    first = tmp_path / "loose0.png"
    which = {
        1: f"{first} is skipped: not",
        3: f"3 images ({first}, …) are skipped: not",
    }
    end = "inside a class folder; move each image into the folder of its class."
    assert splits.notes == (f"{which[num]} {end}",)


@pytest.mark.parametrize("stray", ["old.tar", "b/in/old.tar"])
@pytest.mark.parametrize("root", [".", "train"])
def test_a_tar_among_class_folders_is_not_the_data(tmp_path, root, stray):
    for name in ("a", "b"):
        (tmp_path / root / name / "in").mkdir(parents=True)
        for number in range(3):
            (tmp_path / root / name / "in" / f"{number}.png").write_bytes(png(number))
    path = write_tar(tmp_path / root / stray, range(4))
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("a", "b")
    assert splits.notes == (
        f"{path} is skipped: the images in the class folders are used.",
    )


def test_pictures_beside_shards_are_not_the_data(tmp_path):
    write_tar(tmp_path / "x.tar", range(6))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "1.png").write_bytes(png(1))
    assert len(open_source(tmp_path, "all")) == 6
    (tmp_path / "notes").mkdir()
    assert len(open_source(tmp_path, "all")) == 6


@pytest.mark.parametrize(
    ("write", "suffix"), [(write_tar, ".tar"), (write_parquet, ".parquet")]
)
def test_files_in_split_folders_that_may_be_links(tmp_path, write, suffix):
    data = tmp_path / "data"
    write(data / "train" / f"0000{suffix}", range(6))
    write(tmp_path / "far" / f"0000{suffix}", range(10, 14))
    (data / "validation").symlink_to(tmp_path / "far")
    (data / "train" / "again").symlink_to(data)
    splits = open_splits(data)
    assert len(splits.train) == 6
    assert [brightness(splits.val, n) for n in range(4)] == [10, 11, 12, 13]


def test_more_files_than_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_MAX_OPEN_FILES", 2)
    monkeypatch.setattr(shards, "_MAX_OPEN_FILES", 2)
    for number in range(5):
        values = range(2 * number, 2 * number + 2)
        write_parquet(tmp_path / "rows" / f"train-{number}.parquet", values)
        write_tar(tmp_path / "tars" / f"train-{number}.tar", values)
    for folder in ("rows", "tars"):
        source = open_source(tmp_path / folder, "train")
        order = [9, 0, 4, 2, 8, 1]
        assert [brightness(source, n) for n in order] == order
        assert len(source._files.values) <= 2


@pytest.mark.parametrize("kind", ["png", "parquet", "tar"])
def test_no_image_is_damaged_where_too_many_files_are_open(tmp_path, kind):
    if kind == "parquet":
        path = write_parquet(tmp_path / "x.parquet", range(4))
        source = pickle.loads(pickle.dumps(ParquetSource([str(path)])))
    elif kind == "tar":
        source = ShardSource([str(write_tar(tmp_path / "x.tar", range(4)))])
    else:
        source = FileSource(tmp_path, ["x.png"], np.zeros(1, np.int64), ("all",))
        (tmp_path / "x.png").write_bytes(png(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as last:
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, hard))
        try:
            with pytest.raises(
                LocalError, match=rf"x\.{kind}.* was not read \(Too many"
            ):
                source.read(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert brightness(source, 0) == 0


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    scan = os.scandir

    def refuse(place):  # as the system does for all but root, whom nothing is denied
        if os.path.basename(place) == "cat":
            raise PermissionError(13, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr(os, "scandir", refuse)
    for open_it in (open_splits, open_source):
        with pytest.raises(UserError, match=r"images/cat may not be read: change"):
            open_it(tmp_path / "images")


def test_parquet_files_need_no_labels(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", range(10))
    assert open_splits(path, labels=False).train.classes == ("cat", "dog")
    pq.write_table(pq.read_table(path).drop_columns("label"), path)
    with pytest.raises(UserError, match="none is the label"):
        open_splits(path)
    splits = open_splits(path, labels=False)
    assert (len(splits.train), len(splits.val)) == (9, 1)
    assert not splits.train.is_labelled
    assert brightness(open_source(path, "all", labels=False), 7) == 7
    before = splits.train.source.fingerprint()
    other = write_parquet(tmp_path / "y.parquet", range(10), group=3)
    pq.write_table(pq.read_table(other).drop_columns("label"), other, row_group_size=3)
    assert before != open_source(other, "all", labels=False).fingerprint()


@pytest.mark.parametrize("labels", [[-1] * 4, [None] * 4, ["2021-01-01"] * 4])
def test_invalid_labels_of_parquet_files_are_dropped(tmp_path, labels):
    names = () if isinstance(labels[0], str) else ("cat", "dog")
    write_parquet(tmp_path / "train.parquet", range(4))
    write_parquet(tmp_path / "test.parquet", range(4), labels=labels, names=names)
    splits = open_splits(tmp_path, labels=False)
    assert not splits.train.is_labelled
    assert not splits.val.is_labelled
    with pytest.raises(UserError):
        open_splits(tmp_path)


def test_labels_of_parquet_files_that_disagree_are_dropped(tmp_path):
    write_parquet(tmp_path / "a.parquet", range(4))
    write_parquet(tmp_path / "b.parquet", range(4), names=("dog", "cat"))
    assert not open_source(tmp_path, "all", labels=False).is_labelled
    with pytest.raises(UserError, match="do not belong together"):
        open_source(tmp_path, "all")


def test_shards_need_no_labels(tmp_path):
    path = write_tar(tmp_path / "x.tar", range(10), label="")
    for _ in range(2):  # the second time from the index
        with pytest.raises(
            UserError, match=r"x\.tar has the image folder/0000\.png but no "
        ):
            open_splits(str(path))
        source = open_source(str(path), "all", labels=False)
        assert not source.is_labelled
        assert brightness(source, 7) == 7
    assert len(open_splits(str(path), labels=False).val) == 1
    bigger = write_tar(tmp_path / "y.tar", range(11, 21), label="", suffix=".x.png")
    other = open_source(str(bigger), "all", labels=False)
    assert len(other) == len(source)
    labelled = open_source(
        str(write_tar(tmp_path / "z.tar", range(10))), "all", labels=False
    )
    assert labelled.classes == ("0", "1")
