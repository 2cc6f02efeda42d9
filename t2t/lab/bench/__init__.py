"""Speed of models: steps on random images, and the trainer's steps from files."""
