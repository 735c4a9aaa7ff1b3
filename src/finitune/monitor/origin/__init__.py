"""The first bad value of a step: found by running the step again, or the next one live, operator by operator."""
