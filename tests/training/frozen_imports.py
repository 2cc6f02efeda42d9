"""Imported last by the server of processes: forks search its objects for no garbage."""

import gc

gc.collect()
gc.freeze()
gc.set_threshold(20_000)
