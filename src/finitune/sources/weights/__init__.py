"""Weights in files -> Facts."""
