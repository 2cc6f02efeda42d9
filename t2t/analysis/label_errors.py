"""Likely wrong labels, by what a model predicts (confident learning)."""
