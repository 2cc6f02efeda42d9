"""Any data, shrunk into tar shards that are fast to read: `t2t pack`."""
