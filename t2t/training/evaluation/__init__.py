"""Evaluates a trained model on its own or other data: `t2t eval`."""
