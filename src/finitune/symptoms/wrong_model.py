"""Every number is healthy, and the model has learned something else than was meant.

## What it means

A chat template of another model, documents that see one another, an end token that is no target: the loss falls, and
what it measures is not what was wanted.

## How it is seen

No log shows it. Where a log is healthy and the files beside it warn of such a cause, this is said.
"""
