"""How fast models are: steps on the device, from files, and beside plain ones."""
