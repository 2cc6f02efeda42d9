"""What a run tells: on the screen, in files, as curves, to trackers."""
