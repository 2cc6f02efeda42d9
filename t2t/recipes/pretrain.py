"""Pre-training on images without labels; fine-tune the result with weights=RUN."""

from t2t.recipes.pretrain_masked import masked_autoencoder, masked_patches

RECIPES = {
    "masked_patches": masked_patches,
    "masked_autoencoder": masked_autoencoder,
}
