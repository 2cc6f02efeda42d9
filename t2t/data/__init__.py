"""The data pipeline: sources, decoding, augmentation, batches."""
