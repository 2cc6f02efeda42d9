"""Large sets, read and decoded ahead of the steps that need them."""
