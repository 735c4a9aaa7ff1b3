"""Renders chat templates that nobody has looked at, with little time and memory: a program of its own.

`chat_template` starts it. It reads lines of JSON and answers with lines of JSON; nothing but jinja2 is imported here.
The first line is {"template", "words"}. Each further line is a list of conversations, answered one by one with
{"text"}, with {"refused": why} or with {"beyond": what}; the first line is answered alike, with no text.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from datetime import date
from typing import Any, NoReturn

SECONDS = 1.0
"""Processor time that one conversation may take; of everyday length it takes a thousandth of it."""

SECONDS_EACH = 0.02
"""And all of them together, each."""

MEMORY = 2**29
"""Bytes of address space."""

CHARACTERS, TIMES = 2**20, 16
"""A conversation may become so many characters, and so many times its own; the longest system prompts are 2**15."""


def main() -> None:
    """Answer until there are no more questions."""
    _limit_memory()
    _allow(SECONDS)
    first = json.loads(sys.stdin.readline())
    try:
        template = _compiled(first["template"])
    except Exception as error:  # constants are folded, so the compiler can raise whatever the template can
        _answer(_said(error))
        return
    _answer({"text": ""})
    left, done = SECONDS, 0.0
    for line in sys.stdin:
        for messages in json.loads(line):
            left += SECONDS_EACH
            before = time.process_time()
            _allow(min(SECONDS, left - done))
            _answer(_rendered(template, messages, first["words"]))
            done += time.process_time() - before


def _rendered(template: Any, messages: Sequence[Any], words: dict[str, str]) -> dict[str, str]:
    limit = CHARACTERS + TIMES * sum(len(str(message)) for message in messages)
    parts: list[str] = []
    try:
        for part in template.generate(messages=messages, add_generation_prompt=False, **words):
            parts.append(part)
            limit -= len(part)
            if limit < 0:
                return {"beyond": f"{CHARACTERS} characters"}
        return {"text": "".join(parts)}
    except Exception as error:  # templates raise what they like to refuse a conversation
        return _said(error)


def _compiled(text: str) -> Any:
    """As transformers compiles it, in a sandbox."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant says; the text inside is kept."""

        tags = frozenset({"generation"})  # pyright: ignore[reportAssignmentType]

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment: Any = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    # a fixed day, because a check must say the same tomorrow
    environment.globals["strftime_now"] = date(2026, 1, 1).strftime
    return environment.from_string(text)


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)


def _tojson(value: Any, **options: Any) -> str:
    plain: dict[str, Any] = {"ensure_ascii": False, **options}
    return json.dumps(value, **plain)


def _said(error: Exception) -> dict[str, str]:
    if isinstance(error, MemoryError):
        return {"beyond": f"{MEMORY >> 20} MiB"}
    return {"refused": str(error)[:200] or type(error).__name__}


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bytes_ = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


def _allow(seconds: float) -> None:
    """The system ends this process when it has computed for longer, in whatever function it is then."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, max(seconds, 0.001))


if __name__ == "__main__":
    main()
