"""Fast operations: each a plain reference and a fast path with one signature."""
