"""A library refuses to train: it has checked something and stops with a message.

## What it means

A setting or the model does not fit what the library can do: gradients in float16 cannot be unscaled, the loss depends
on nothing that is trained, two configurations contradict each other, tokens were never trained.

## How it is seen

In a log: the message of the check, such as `Attempting to unscale FP16 gradients` (PyTorch), `does not require grad and
does not have a grad_fn` (PyTorch), `correct the following DeepSpeed config values` (transformers).
"""
