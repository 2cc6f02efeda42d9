"""Using trained models."""
