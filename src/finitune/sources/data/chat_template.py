"""The chat template of a model: conversations -> text, rendered by a process that is short of time and memory."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from finitune.finding import UnreadableInput
from finitune.sources.data import chat_render
from finitune.sources.data.tokenizer import NoTokenizer, Tokenizer
from finitune.sources.text import reason, short

Messages = Sequence[Mapping[str, Any]]

START = "import json, sys; sys.path[:], program = json.loads(sys.stdin.readline()); exec(open(program).read())"
"""Isolated from the user's folder and variables, with the packages that are installed here."""


class Refused(ValueError):
    """The template refuses a conversation; the message says why."""


class ChatTemplate:
    """A compiled template. Its lifetime is that of the process that renders; `close` ends it.

    Raises NoTokenizer without a template or without jinja2, UnreadableInput for a template that does not compile.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        folder = Path(tokenizer.source).parent
        if tokenizer.chat_template is None:
            raise NoTokenizer(f"{folder}: no chat template for rows of messages")
        if importlib.util.find_spec("jinja2") is None:
            raise NoTokenizer("the package jinja2 is not installed (pip install jinja2)")
        self._name = f"{folder}: the chat template"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            )  # fmt: skip
        except OSError as error:
            raise NoTokenizer(f"{self._name} needs a process of its own ({reason(error)})") from None
        self._send([[path for path in sys.path if path], chat_render.__file__])
        self._send({"template": tokenizer.chat_template, "words": dict(tokenizer.words)})
        try:
            answer = self._receive()
        except NoTokenizer:
            self.close()
            raise
        if isinstance(answer, Refused):
            self.close()
            raise UnreadableInput(f"{tokenizer.source}: chat template: {short(answer)}")

    def render(self, conversations: Sequence[Messages]) -> Iterator[str | Refused]:
        """The text of each, or why the template refuses it. Raises NoTokenizer for one that goes beyond all bounds."""
        self._send(conversations)
        for _ in conversations:
            yield self._receive()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with self._process:
            pass

    def _send(self, value: Any) -> None:
        try:
            # tools in Parquet may hold dates and other values that are no JSON
            self._input.write(json.dumps(value, default=str, skipkeys=True) + "\n")
            self._input.flush()
        except BrokenPipeError:  # what became of it, the next answer tells
            pass

    def _receive(self) -> str | Refused:
        line = self._output.readline()
        if not line.endswith("\n"):
            code = self._process.wait()
            if code == -getattr(Signals, "SIGPROF", 0):
                raise NoTokenizer(f"{self._name} takes more than {chat_render.SECONDS:g} s for one row")
            raise NoTokenizer(f"{self._name} ended the process that renders it (exit code {code})")
        answer = json.loads(line)
        if "beyond" in answer:
            raise NoTokenizer(f"{self._name} makes more than {answer['beyond']} of one row")
        return answer["text"] if "text" in answer else Refused(answer["refused"])

    @property
    def _input(self) -> Any:
        return self._process.stdin

    @property
    def _output(self) -> Any:
        return self._process.stdout
