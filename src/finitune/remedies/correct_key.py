"""Spell the setting as the framework reads it.

## What it changes

One key, or one value, of one file: the run gets the setting that was meant all along.

## When it is safe

When the proposed key is the one that was meant. The run changes with it, so look at what the setting does.

## References

shibing624/MedicalGPT#296 (a flag written as bp16).
"""

from __future__ import annotations

safety = "advice"
