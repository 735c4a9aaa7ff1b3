"""Python programs read by `ast`, never run: names, values, and the calls that set up a training."""
