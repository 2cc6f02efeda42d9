"""Pre-training on images without labels; `--from RUN` fine-tunes the result."""

from t2t.recipes.pretrain_masked import masked_autoencoder, masked_patches
from t2t.recipes.pretrain_views import byol, dino, moco_v3, simclr

RECIPES = {
    "moco_v3": moco_v3,  # the one that docs/pretraining.md begins with
    "simclr": simclr,
    "byol": byol,
    "dino": dino,
    "masked_autoencoder": masked_autoencoder,
    "masked_patches": masked_patches,
}
