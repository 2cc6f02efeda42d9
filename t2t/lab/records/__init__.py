"""Records: finished runs gathered in a folder, so that anyone can check them."""
