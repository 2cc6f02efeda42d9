"""Numbers that kernels share with the functions that launch them.

The kernels import nothing of PyTorch: processes that only compile them start at once.
"""

TOKEN_DIM = 64
"""The width of tokens that the token transformer's kernels are written for."""

CODES = {
    "brightness": 1,
    "contrast": 2,
    "posterize": 3,
    "solarize": 4,
    "solarize_add": 5,
    "invert": 6,
    "auto_contrast": 7,
    "equalize": 8,
    "saturation": 9,
    "sharpness": 10,
    "affine_linear": 11,
    "affine_cubic": 12,
}
"""Of augmentation operations: first those on single levels, which become tables, up to
equalize. 0 leaves a sample as it is."""
