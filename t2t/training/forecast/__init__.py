"""Time and memory of a run, measured here or computed for other GPUs."""
