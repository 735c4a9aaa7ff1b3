"""The weights hold NaN or infinity, and the program has found them.

## What it means

An update was taken with gradients that were not finite, or the weights were damaged as they were loaded.

## How it is seen

In a log: `Found NaN or inf values in parameter` (Ludwig), which looks at every parameter after an epoch.
"""
