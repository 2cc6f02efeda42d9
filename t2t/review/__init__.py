"""What went wrong: surest mistakes, likely wrong labels, near-duplicates; as a page."""
