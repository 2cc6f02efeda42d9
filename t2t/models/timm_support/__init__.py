"""The interface to timm: registry, model methods, checkpoints, dropout, FX graphs."""
