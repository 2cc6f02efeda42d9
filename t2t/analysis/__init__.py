"""Looking into models: what they cost, what they attend to, what they see."""
