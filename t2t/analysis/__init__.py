"""Analysis of models: cost, attention, and the evidence for predictions."""
