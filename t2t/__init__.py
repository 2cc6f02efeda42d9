"""Train vision transformers from scratch on the images you have."""

__version__ = "0.1.0"
