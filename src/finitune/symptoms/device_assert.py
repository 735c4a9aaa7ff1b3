"""An assertion failed on the GPU, and the message does not say which.

## What it means

A kernel checked an index or a probability and stopped the whole context. The line of Python that is named comes later:
kernels run asynchronously.

## How it is seen

In a log: `device-side assert triggered`, without the text of the assertion beside it.
"""
