"""The captured step, run again: as it was, instrumented, or with one thing changed."""
