"""Operations from outside the package, beside the package's own."""

import dataclasses
from unittest import mock

import pytest
import torch

from t2t.config import override
from t2t.data.augment import apply
from t2t.data.augment.apply import apply_chosen, apply_torch, apply_triton
from t2t.data.augment.config import Augmentation
from t2t.data.augment.operations import OPERATIONS, register_augmentation
from t2t.data.augment.pipeline import augment_images, distort
from t2t.data.augment.policies import RandAugment
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.ops.kernels.numbers import CODES

NAMES = ("rotate", "darken", "invert", "hue")


@pytest.fixture(autouse=True)
def own_operations():
    """Forgets what a test registers."""
    yield
    for name in OPERATIONS.keys() - OPERATIONS.built_in:
        del OPERATIONS[name]


def darken(images, values):
    return (images * (1 - values)[:, None, None, None]).to(torch.uint8)


def batch(num: int = 24):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (num, 3, 12, 10), generator=generator)
    return images.to(torch.uint8), CounterRng.of(0, 3, torch.arange(num))


def test_rand_augment_draws_a_users_operation():
    register_augmentation("darken")(darken)
    images, rng = batch()
    config = Augmentation(rand_augment="rand-m9-n1-p1", rand_augment_operations=NAMES)
    policy = RandAugment.of(config)
    (layer,) = policy.draw(rng)
    assert set(layer.choice.tolist()) == {0, 1, 2, 3}
    drew = layer.choice == 1
    assert layer.value[drew].allclose(torch.tensor(0.9))
    result = distort(images, rng, config)
    assert torch.equal(result[drew], darken(images[drew], layer.value[drew]))
    assert torch.equal(result[layer.choice == 2], 255 - images[layer.choice == 2])


def test_a_magnitude_becomes_the_value():
    register_augmentation("darken", magnitude=lambda given: given.signed * 10)(darken)
    register_augmentation("still", magnitude=None)(darken)
    policy = RandAugment.parse("rand-m5", ("darken", "still"))
    choice, magnitude = torch.tensor([0, 0, 1]), torch.full((3,), 5.0)
    values = policy.values(choice, magnitude, torch.tensor([False, True, False]))
    assert values.tolist() == [5.0, -5.0, 0.0]


def test_the_same_on_a_cpu_on_a_device_and_compiled():
    register_augmentation("darken")(darken)
    images, rng = batch()
    config = Augmentation(rand_augment="rand-m9-n1-p1", rand_augment_operations=NAMES)
    (layer,) = RandAugment.of(config).draw(rng)
    given = (NAMES, layer.choice, layer.value, config.fill, layer.is_cubic)
    expected = apply_chosen(images, *given)
    assert torch.equal(apply_torch(images, *given), expected)
    compiled = torch.compile(augment_images, fullgraph=True, backend="eager")
    assert torch.equal(
        compiled(images, rng, config), augment_images(images, rng, config)
    )


def test_only_operations_without_a_kernel_leave_the_kernels():
    """With the kernel replaced by torch, since there is none on a CPU."""
    register_augmentation("darken")(darken)
    images, rng = batch()
    names = ("invert", "darken", "grayscale")
    choice = rng.integers("choice", 4)[:, 0] - 1
    values = rng.uniform("value")[:, 0]
    seen = []

    def kernel(pixels, codes, values, matrix, fill):
        seen.append(codes)
        code = CODES
        own = torch.where(codes == code["invert"], 0, -1)
        own = torch.where(codes == code["saturation"], 1, own)
        assert (values[codes == code["saturation"]] == 0).all()
        return apply_torch(pixels, ("invert", "saturation"), own, values)

    with mock.patch.object(apply.augment_triton, "apply_operations", kernel):
        result = apply_triton(images, names, choice, values)
    assert torch.equal(result, apply_torch(images, names, choice, values))
    (codes,) = seen
    assert (codes[choice == 1] == 0).all()
    with mock.patch.object(apply.augment_triton, "apply_operations", None):
        apply_triton(images, ("darken", "hue"), choice, values)


def test_names_are_checked():
    images, rng = batch()
    config = Augmentation(rand_augment="rand-m9", rand_augment_operations=("invrt",))
    with pytest.raises(UserError, match=r"'invrt' is not known; allowed: .*invert"):
        distort(images, rng, config)
    for names, message in (((), "is empty"), (("invert",) * 2, "'invert' twice")):
        config = dataclasses.replace(config, rand_augment_operations=names)
        with pytest.raises(UserError, match=message):
            distort(images, rng, config)
    with pytest.raises(UserError, match="'rotate' is registered already"):
        register_augmentation("rotate")(darken)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda images, values: images / 2,
        lambda images, values: images[:, :1],
        lambda images, values: None,
    ],
)
def test_results_are_checked(wrong):
    register_augmentation("wrong")(wrong)
    images, _ = batch()
    choice, values = torch.zeros(24, dtype=torch.int64), torch.zeros(24)
    with pytest.raises(UserError, match=r"'wrong' returned .* should return"):
        apply_chosen(images, ("wrong",), choice, values)


def test_magnitudes_are_checked():
    with pytest.raises(UserError, match="magnitude=3 of 'wrong' should be a function"):
        register_augmentation("wrong", magnitude=3)
    register_augmentation("wrong", magnitude=lambda given: "x")(darken)
    images, rng = batch()
    config = Augmentation(rand_augment="rand-m9", rand_augment_operations=("wrong",))
    with pytest.raises(UserError, match=r"'wrong' returned 'x': it should return a te"):
        distort(images, rng, config)


def test_operations_are_set_from_text():
    config = override(Augmentation(), ["rand_augment_operations='invert','rotate'"])
    assert config.rand_augment_operations == ("invert", "rotate")
    assert override(config, ["rand_augment_operations=none"]) == Augmentation()
