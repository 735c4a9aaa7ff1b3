"""Precision: how float16 behaves on a machine whose own float16 kernels are slow."""
