"""What went wrong: mistakes, likely wrong labels, near-duplicates; as a page."""
