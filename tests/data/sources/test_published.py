"""Data sets are read in the layouts that they are published in."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from t2t.data.decoding.decode import decode
from t2t.data.sources import Source, Splits, open_source, open_splits
from t2t.data.sources.filenames import expand_braces
from t2t.errors import UserError


def image(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (value, 0, 0)).save(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def labels_by_name(source: Source) -> dict[str, str]:
    return {
        Path(source.name(index)).name: source.classes[source.labels[index]]
        for index in range(len(source))
    }


def tiny_imagenet(root: Path) -> None:
    for wnid in ("n02", "n01"):
        image(root / "train" / wnid / "images" / f"{wnid}_0.JPEG")
        write(root / "train" / wnid / f"{wnid}_boxes.txt", f"{wnid}_0.JPEG\t0\t0\t1\t1")
    for number in range(3):
        image(root / "val" / "images" / f"val_{number}.JPEG")
        image(root / "test" / "images" / f"test_{number}.JPEG")
    write(root / "wnids.txt", "n02\nn01\n")
    rows = [
        f"val_{n}.JPEG\t{w}\t0\t0\t1\t1" for n, w in enumerate(("n02", "n01", "n02"))
    ]
    write(root / "val" / "val_annotations.txt", "\n".join(rows))


def test_tiny_imagenet(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.val.classes == ("n01", "n02")
    assert labels_by_name(splits.val) == {
        "val_0.JPEG": "n02",
        "val_1.JPEG": "n01",
        "val_2.JPEG": "n02",
    }
    assert len(splits.train) == 2
    assert decode(splits.val.read(0)).shape == (3, 4, 4)


def test_tiny_imagenet_in_the_folder_that_it_was_unpacked_in(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("n01", "n02")
    assert (len(splits.train), len(splits.val)) == (2, 3)


def test_a_list_that_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"val_annotations.txt is not text"):
        open_splits(tmp_path)


@pytest.mark.parametrize("line", ["a_2 x 1 1", "a_2"])
def test_damaged_lines_of_pets_are_one_sentence(line: str, tmp_path: Path) -> None:
    image(tmp_path / "images" / "a_1.jpg")
    for split in ("trainval", "test"):
        write(tmp_path / "annotations" / f"{split}.txt", f"a_1 1 1 1\n{line}\n")
    with pytest.raises(UserError, match=rf"trainval.txt has the line '{line}'"):
        open_splits(tmp_path)


def test_flowers_that_no_label_is_of_are_one_sentence(tmp_path: Path) -> None:
    image(tmp_path / "jpg" / "image_00001.jpg")
    savemat(tmp_path / "imagelabels.mat", {"labels": [[1]]})
    savemat(tmp_path / "setid.mat", {"trnid": [[1]], "valid": [[2]], "tstid": [[1]]})
    with pytest.raises(UserError, match=r"setid.mat lists images from 1 to 2"):
        open_splits(tmp_path)


def test_tiny_imagenet_without_annotations_is_one_sentence(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    (tmp_path / "val" / "val_annotations.txt").unlink()
    with pytest.raises(UserError, match=r"images in .*val are unknown: put val_a"):
        open_splits(tmp_path)


def test_annotations_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    notes = tmp_path / "val" / "val_annotations.txt"
    text = notes.read_text()
    notes.write_text(text.replace("n01", "n09"))
    with pytest.raises(UserError, match=r"the class 'n09', but .* has no such folder"):
        open_splits(tmp_path)
    notes.write_text(text.partition("\n")[0])
    with pytest.raises(UserError, match=r"has no label for .*val_1\.JPEG"):
        open_splits(tmp_path)


def imagenet(train: Path, val: Path) -> None:
    for wnid in ("n01", "n02"):
        image(train / wnid / f"{wnid}_0.JPEG")
    for number in (1, 2):
        image(val / f"ILSVRC2012_val_0000000{number}.JPEG")


def by_kaggle(root: Path) -> None:
    data = root / "ILSVRC" / "Data" / "CLS-LOC"
    imagenet(data / "train", data / "val")
    image(data / "test" / "ILSVRC2012_test_1.JPEG")
    rows = (
        "ImageId,PredictionString\nILSVRC2012_val_00000002,n01 1 2 3 4 n01 1 1 1 1 \n"
    )
    write(root / "LOC_val_solution.csv", rows + "ILSVRC2012_val_00000001,n02 1 2 3 4\n")


def by_devkit(root: Path) -> None:
    imagenet(root / "train", root / "val")
    devkit = root / "ILSVRC2012_devkit_t12" / "data"
    write(devkit / "ILSVRC2012_validation_ground_truth.txt", "7\n3\n")
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    rows = np.array([(3, "n01", "cat"), (7, "n02", "dog"), (9, "n03", "x")], kinds)
    savemat(devkit / "meta.mat", {"synsets": rows.reshape(-1, 1)})


def by_synsets(root: Path) -> None:
    imagenet(root / "ILSVRC2012_img_train", root / "ILSVRC2012_img_val")
    write(root / "imagenet_2012_validation_synset_labels.txt", "n02\nn01\n")


@pytest.mark.parametrize("make", [by_kaggle, by_devkit, by_synsets])
def test_imagenet_with_a_flat_validation_folder(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    splits = open_splits(tmp_path)
    assert splits.train.classes == splits.val.classes == ("n01", "n02")
    assert labels_by_name(splits.val) == {
        "ILSVRC2012_val_00000001.JPEG": "n02",
        "ILSVRC2012_val_00000002.JPEG": "n01",
    }
    inner = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    if inner.is_dir():
        assert labels_by_name(open_source(inner)) == labels_by_name(splits.val)


@pytest.mark.parametrize(
    ("make", "lost", "words"),
    [
        (by_kaggle, "LOC_val_solution.csv", "are unknown: put"),
        (
            by_devkit,
            "ILSVRC2012_devkit_t12/data/meta.mat",
            "needs meta.mat in the same folder",
        ),
    ],
)
def test_imagenet_without_labels_is_one_sentence(
    make: Callable[[Path], None], lost: str, words: str, tmp_path: Path
) -> None:
    make(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(UserError, match=words):
        open_splits(tmp_path)


def test_a_wrong_number_of_labels_is_one_sentence(tmp_path: Path) -> None:
    by_synsets(tmp_path)
    write(tmp_path / "imagenet_2012_validation_synset_labels.txt", "n02\n")
    with pytest.raises(UserError, match=r"has 1 labels and .* 2 images"):
        open_splits(tmp_path)


PIXELS = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)


def pickled(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


def cifar_10(root: Path) -> None:
    folder = root / "cifar-10-batches-py"
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        pickled(folder / name, {b"data": PIXELS, b"labels": [1, 0], b"filenames": []})
    pickled(folder / "batches.meta", {b"label_names": [b"cat", b"dog"]})


def cifar_100(root: Path) -> None:
    folder = root / "cifar-100-python"
    for name in ("train", "test"):
        labels = {b"fine_labels": [1, 0], b"coarse_labels": [0, 0]}
        pickled(folder / name, {b"data": PIXELS, **labels})
    pickled(folder / "meta", {b"fine_label_names": [b"cat", b"dog"]})


def cifar_10_binary(root: Path) -> None:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    rows = np.concatenate([np.array([[1], [0]], np.uint8), PIXELS], 1).tobytes()
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(rows)
    (folder / "batches.meta.txt").write_text("cat\ndog\n\n")


def cifar_100_binary(root: Path) -> None:
    folder = root / "cifar-100-binary"
    folder.mkdir()
    rows = np.concatenate([np.array([[0, 1], [0, 0]], np.uint8), PIXELS], 1).tobytes()
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(rows)
    (folder / "fine_label_names.txt").write_text("cat\ndog\n")


CIFARS = [cifar_10, cifar_100, cifar_10_binary, cifar_100_binary]


def folder_in(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


@pytest.mark.parametrize("make", CIFARS)
@pytest.mark.parametrize("inner", [False, True])
def test_cifar(make: Callable[[Path], None], inner: bool, tmp_path: Path) -> None:
    make(tmp_path)
    splits = open_splits(folder_in(tmp_path) if inner else tmp_path)
    assert splits.train.classes == ("cat", "dog")
    assert splits.val.labels.tolist() == [1, 0]
    assert len(splits.train) == (10 if "10_" in make.__name__ + "_" else 2)
    pixels = splits.val.read(1)
    assert pixels.shape == (3, 32, 32)
    assert pixels.flatten().tolist() == PIXELS[1].tolist()


@pytest.mark.parametrize("make", CIFARS)
def test_damaged_cifar_is_one_sentence(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    folder = folder_in(tmp_path)
    first = next(
        p for p in sorted(folder.iterdir()) if p.name.startswith(("data", "tra"))
    )
    whole = first.read_bytes()
    first.write_bytes(whole[:-7])
    with pytest.raises(UserError, match="is not a CIFAR batch"):
        open_splits(tmp_path)
    first.unlink()
    with pytest.raises(UserError, match=f"lacks {re.escape(first.name)} of"):
        open_splits(tmp_path)


def test_a_batch_runs_nothing(tmp_path: Path) -> None:
    cifar_10(tmp_path)
    path = folder_in(tmp_path) / "test_batch"
    path.write_bytes(b"cposix\nsystem\n(S'exit'\ntR.")
    with pytest.raises(UserError, match=r"it holds posix\.system"):
        open_splits(tmp_path)


def flowers(root: Path) -> None:
    for number in range(1, 5):
        image(root / "jpg" / f"image_{number:05d}.jpg")
    savemat(root / "imagelabels.mat", {"labels": np.array([[2, 1, 2, 1]])})
    ids = {"trnid": [[3]], "valid": [[4]], "tstid": [[2, 1]]}
    savemat(root / "setid.mat", {key: np.array(value) for key, value in ids.items()})


def splits_without_the_other_classes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> Splits:
    from torchvision.datasets import Flowers102

    monkeypatch.setattr(Flowers102, "classes", ["rose", "lily"], raising=False)
    return open_splits(root)


def test_flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flowers(tmp_path)
    splits = splits_without_the_other_classes(tmp_path, monkeypatch)
    one, two = splits.train.classes
    assert labels_by_name(splits.train) == {
        "image_00003.jpg": two,
        "image_00004.jpg": one,
    }
    assert labels_by_name(splits.val) == {
        "image_00002.jpg": one,
        "image_00001.jpg": two,
    }
    (tmp_path / "setid.mat").unlink()
    with pytest.raises(UserError, match=r"setid\.mat, the list of images, is missing"):
        open_splits(tmp_path)


def test_pets(tmp_path: Path) -> None:
    stems = ("Abyssinian_1", "great_dane_2", "Abyssinian_3", "great_dane_4")
    for stem in stems:
        image(tmp_path / "images" / f"{stem}.jpg")
    lists = tmp_path / "annotations"
    write(lists / "trainval.txt", "Abyssinian_1 1 1 1\ngreat_dane_2 2 2 1\n")
    write(
        lists / "test.txt", "#Image CLASS-ID\ngreat_dane_4 2 2 1\nAbyssinian_3 1 1 1\n"
    )
    splits = open_splits(tmp_path)
    assert splits.train.classes == ("Abyssinian", "Great Dane")
    assert labels_by_name(splits.val)["great_dane_4.jpg"] == "Great Dane"
    (lists / "trainval.txt").unlink()
    with pytest.raises(
        UserError, match=r"trainval\.txt, the list of images, is missing"
    ):
        open_splits(tmp_path)


def test_food_textures_and_aircraft(tmp_path: Path) -> None:
    food, dtd, planes = (tmp_path / name for name in ("food-101", "dtd", "planes"))
    write(food / "meta" / "classes.txt", "pie\nsoup")
    write(dtd / "labels" / "labels_joint_anno.txt", "")
    write(planes / "data" / "variants.txt", "707\nA380")
    for root, part, rows in (
        (food, "meta/train.txt", "pie/1\nsoup/2"),
        (food, "meta/test.txt", "soup/3\npie/4"),
        (dtd, "labels/train1.txt", "pie/1.jpg"),
        (dtd, "labels/val1.txt", "soup/2.jpg"),
        (dtd, "labels/test1.txt", "soup/3.jpg\npie/4.jpg"),
        (planes, "data/images_variant_trainval.txt", "1 707-320\n2 A380"),
        (planes, "data/images_variant_test.txt", "3 A380\n4 707-320"),
    ):
        write(root / part, rows)
    for root in (food, dtd, planes):
        splits = open_splits(root)
        assert len(splits.train) == 2
        assert splits.val.labels.tolist() == [1, 0]
        path = Path(splits.val.name(0))
        assert (path.stem, path.suffix) == ("3", ".jpg")
        assert path.is_relative_to(root)


def test_a_set_that_torchvision_reads(tmp_path: Path) -> None:
    for split, num in (("train", 60000), ("t10k", 10000)):
        header = (0x803).to_bytes(4) + num.to_bytes(4) + (28).to_bytes(4) * 2
        raw = tmp_path / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(header + bytes(num * 784))
        labels = np.arange(num, dtype=np.uint8) % 10
        header = (0x801).to_bytes(4) + num.to_bytes(4)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    for root in (tmp_path, tmp_path / "MNIST"):
        splits = open_splits(root)
        assert (len(splits.train), len(splits.val)) == (60000, 10000)
    (raw / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(
        UserError, match="looks like the data set mnist, but some of its"
    ):
        open_splits(tmp_path)


def test_a_flat_validation_folder_beside_classes_is_reported(
    tmp_path: Path,
) -> None:
    image(tmp_path / "train" / "cat" / "1.png")
    image(tmp_path / "train" / "dog" / "1.png")
    image(tmp_path / "val" / "1.png")
    with pytest.raises(UserError, match="class"):
        open_splits(tmp_path)


def test_a_link_to_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to("gone")
    with pytest.raises(UserError, match=r"photos is a link to gone, which does not"):
        open_splits(tmp_path / "photos")


def test_numbers_of_shards_may_fall_and_have_a_limit() -> None:
    assert expand_braces("a{10..8}.tar") == ["a10.tar", "a09.tar", "a08.tar"]
    with pytest.raises(UserError, match=r"is a pattern for 10,000,000,000 names: give"):
        expand_braces("a{0..9999999999}.tar")


def test_flat_validation_images_without_labels(tmp_path):
    for name in ("train/n01/1.png", "train/n02/1.png", "val/ILSVRC2012_val_1.png"):
        path = tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    splits = open_splits(tmp_path, labels=False)
    assert (len(splits.train), len(splits.val)) == (2, 1)
    assert not splits.train.is_labelled
    with pytest.raises(UserError, match=r"classes of the images .* are unknown"):
        open_splits(tmp_path)
