"""Training: from a recipe and images to a folder that holds the trained model."""
