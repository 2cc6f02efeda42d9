"""A model's mistakes, likely wrong labels and near-duplicates, as a page."""
