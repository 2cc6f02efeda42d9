"""The log of a run: console, files, curves and experiment trackers."""
