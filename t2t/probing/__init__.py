"""What features are worth: probes, nearest neighbors and pictures of any weights."""
