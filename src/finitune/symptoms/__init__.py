"""Symptoms: what went wrong, seen in signals. One chapter each, found by file name."""
