"""The program died: an exception of its own, of PyTorch or of the device, or a signal.

## What it means

Nothing is wrong with the numbers before it, as far as they were looked at; where something was, an incident before
says so. An index out of range, a failed assertion of the device, "probability tensor contains inf, nan", shapes that do
not fit, no memory left.

## How it is seen

`finitune run` records the exception, the frames of the user's own files, and what is known of the batch: token ids
outside the embedding, inputs that are not finite, shapes. A death by a signal (SIGKILL, SIGSEGV, SIGABRT) is recorded
by the process that started the program.
"""

from __future__ import annotations
