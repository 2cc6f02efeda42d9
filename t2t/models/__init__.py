"""Models: four slots and a size."""
