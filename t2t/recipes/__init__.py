"""Named runs: functions that return a frozen Recipe."""
