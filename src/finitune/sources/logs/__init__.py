"""Logs: what a run printed, or left behind in files -> signals, messages and facts, each with its line.

A file is known by its content. `trainer_state`, `tables` and `tensorboard` each read a kind of file, by
`recognises(head) -> bool` and `read(path, log)`; everything else is text from a terminal, read by `console`.
Nothing of a log is ever followed.
"""

from finitune.sources.logs.attempt import Attempt, LogReading, Message
from finitune.sources.logs.files import read, read_lines

__all__ = ["Attempt", "LogReading", "Message", "read", "read_lines"]
