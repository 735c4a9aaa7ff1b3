"""A program of a user's, for what is read off the frames that run."""

from __future__ import annotations

import linecache

import torch
import torch.nn.functional as F

from finitune.monitor.user_code import source_tree

FILE = "user_program.py"


def found(source, look, **given):
    """What `look()` returns where the program calls `found()`."""
    seen = []
    run(source, torch=torch, F=F, **given, found=lambda: seen.append(look()))
    return seen[0]


def run(source, **names):
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    source_tree.parsed.cache_clear()
    exec(compile(source, FILE, "exec"), names)
