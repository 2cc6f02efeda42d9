"""Pre-training on images without labels; `--from RUN` fine-tunes the result."""

from t2t.recipes.pretrain_masked import masked_autoencoder, masked_patches
from t2t.recipes.pretrain_views import byol, dino, moco_v3, simclr

RECIPES = {
    "masked_patches": masked_patches,
    "masked_autoencoder": masked_autoencoder,
    "simclr": simclr,
    "byol": byol,
    "moco_v3": moco_v3,
    "dino": dino,
}
