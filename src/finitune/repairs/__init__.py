"""Remedies that rewrite files: a repaired copy of a model or of data, patched settings, and the way back.

A copy is made under a temporary name beside the output and renamed when it is complete and reads back, so the output
is whole or absent. What a remedy changes is its own business (`apply` of its chapter, or the patch that it proposes).
"""
