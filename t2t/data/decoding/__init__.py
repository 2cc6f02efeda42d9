"""From encoded bytes to pixels, on a CPU or a GPU."""
