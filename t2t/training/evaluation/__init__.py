"""How good a trained model is, by its own data or other: `t2t eval`."""
