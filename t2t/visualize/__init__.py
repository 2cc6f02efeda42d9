"""Pictures and a report of what models see in images."""
