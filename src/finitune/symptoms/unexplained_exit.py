"""The command failed, and nothing that was recorded says why.

## What it means

A process that was ended by `sys.exit` or `os._exit`, a framework that caught its own exception, a failure after the
training.

## How it is seen

The exit code is not 0, no exception ended a watched process, no signal came from outside, and no step was bad. It is a
suspicion: what the program printed last may explain it.
"""

from __future__ import annotations
