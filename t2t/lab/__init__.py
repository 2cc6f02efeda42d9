"""Research on the project itself: studies, records, speed, plans for many GPUs."""
