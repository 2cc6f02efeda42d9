"""What a run would take, measured here or computed for other machines."""
