"""Statements of the user's computed again, on copies: which of them has made a loss, a gradient or a weight bad."""
