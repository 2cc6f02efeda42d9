"""Weights from a file anywhere: found, read, renamed, recognised, made to fit."""
