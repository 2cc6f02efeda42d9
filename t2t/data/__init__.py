"""Images in: sources, decoding, augmentation, batches."""
