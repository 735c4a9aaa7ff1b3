"""What a source hands back: the facts it found, and in words what it could not look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from finitune.facts import Facts
from finitune.finding import NotChecked

Item = TypeVar("Item")


class Track(Protocol):
    """Shows how far long work is: the items pass through, `what` they are and how many, where that is known."""

    def __call__(self, items: Iterable[Item], what: str, total: int | None, /) -> Iterable[Item]: ...


def untracked(items: Iterable[Item], what: str, total: int | None, /) -> Iterable[Item]:  # noqa: ARG001
    """The items, and nothing is shown."""
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Facts from one input, and what was left out of them."""

    facts: Facts = field(default_factory=Facts)
    not_checked: Sequence[NotChecked] = ()
    understood: Sequence[str] = ()
    """What each file was taken for, one line each."""
    places: Mapping[str, Mapping[str, tuple[int | None, int]]] = field(
        default_factory=dict[str, Mapping[str, tuple[int | None, int]]]
    )
    """Of a program: the cell and the line of each of its keys, "" for the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How the trainer turns a row of data into labels, as far as the configs say.

    `max_length` is in tokens. `completion_only` and `assistant_only` are None where nothing was said:
    then a prompt/completion row supervises its completion and a chat row all of its tokens.
    """

    max_length: int | None = None
    completion_only: bool | None = None
    assistant_only: bool | None = None
    packing: bool | None = None
    response_template: str | None = None
    """Text whose tokens mark the answer; what comes after its last occurrence is supervised, and nothing without it."""

    def over(self, other: Supervision) -> Supervision:
        """These settings where they are known, `other`'s elsewhere."""
        return Supervision(
            max_length=other.max_length if self.max_length is None else self.max_length,
            completion_only=other.completion_only if self.completion_only is None else self.completion_only,
            assistant_only=other.assistant_only if self.assistant_only is None else self.assistant_only,
            packing=other.packing if self.packing is None else self.packing,
            response_template=self.response_template or other.response_template,
        )
