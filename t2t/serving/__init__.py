"""Prediction with trained models."""
