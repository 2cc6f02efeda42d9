"""Reads weights of any format: resolve, read, translate, identify, adapt."""
