"""Augmentation of uint8 batches on their device, drawn per sample."""
