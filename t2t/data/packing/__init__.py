"""`t2t pack`: shrinks images and packs them into tar shards."""
