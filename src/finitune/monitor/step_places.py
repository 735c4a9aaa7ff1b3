"""Where in the user's program an optimizer steps: whether two do so in the same pass of a loop."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from types import CodeType

from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.source_tree import are_in_branches, holds_line, loops_at, scope_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    frame: int
    """The identity of the innermost running frame of the user's; it is not kept alive."""
    code: CodeType
    line: int
    called: bool = False
    """By a library: what runs it again is not seen."""
    around: tuple[StepPlace, ...] = ()
    """Of all running frames of the user's, outermost first; this one is the last."""

    @staticmethod
    def now() -> StepPlace | None:
        frames = list(user_frames())
        around = [
            StepPlace(
                frame=id(one),
                code=one.f_code,
                line=one.f_lineno,
                called=caller is not None and one.f_back is not caller,
            )
            for one, caller in zip_longest(frames, frames[1:])
        ]
        return replace(around[0], around=tuple(reversed(around))) if around else None

    def follows(self, before: StepPlace | None) -> bool:
        """True where it is the same place as that of the step that was taken last, or in another branch of an `if`, in
        the next pass of the only loop that stands around it.
        """
        if before is None or (before.frame, before.code) != (self.frame, self.code):
            return False
        if self.line != before.line and not _are_in_branches(self.code, self.line, before.line):
            return False
        loops = [len(one.loops) for one in self.around]
        return loops[-1] == sum(loops) == 1  # in this function itself, whose frame is the same one for certain

    def is_at(self, before: StepPlace | None) -> bool:
        """True at the same lines of the same functions, whichever calls of these run."""
        there = [] if before is None else [(one.code, one.line) for one in before.around]
        return bool(there) and [(one.code, one.line) for one in self.around] == there

    def stands_above(self, before: StepPlace | None) -> bool:
        """True where the program has come back to a place above that of the step that was taken last: in the next pass
        of a loop, or in another call. Branches of an `if` are taken by turns, also by several optimizers of one batch.
        """
        n = self._parts_from(before)
        return before is not None and n is not None and self.around[n].line < before.around[n].line

    def is_in_pass_of(self, before: StepPlace | None, *, repeated: bool = False) -> bool:
        """True where it stands below the step that was taken last, in the same call of a function, and in no loop that
        does not hold both; where no loop does, neither stands in one. A step that was `repeated` there, in no loop of
        the user's, stands in one of a library's, unless that has called the function itself.
        """
        n = self._parts_from(before)
        if before is None or n is None or self.around[n].line < before.around[n].line:
            return False
        if any(one.frame != other.frame for one, other in zip(self.around[: n + 1], before.around, strict=False)):
            return False
        if _own_loops(self.around[n], before.around[n]) or any(one.loops for one in self.around[n + 1 :]):
            return False
        within_one = any(one.loops for one in self.around[: n + 1])
        in_library = repeated and not self.around[n].called
        return within_one or not (in_library or any(one.loops for one in before.around[n:]))

    def has_loop_since(self, before: StepPlace | None) -> bool:
        """True where it stands below the step that was taken last, and in a loop of its own, which runs backwards too:
        another part of the training, not one of several optimizers that step on one batch.
        """
        n = self._parts_from(before)
        if before is None or n is None or self.around[n].line < before.around[n].line:
            return False
        within = [loop for one in self.around[n + 1 :] for loop in one.loops]
        return any(map(_runs_backward, [*_own_loops(self.around[n], before.around[n]), *within]))

    @property
    def loops(self) -> tuple[ast.For | ast.While, ...]:
        """Those around it in its function, outermost first."""
        return _loops_around(self.code, self.line)

    def _parts_from(self, before: StepPlace | None) -> int | None:
        """The last of the frames around both that is of one function; None where they are in branches of an `if`."""
        for n, (here, last) in enumerate(zip(self.around, before.around, strict=False) if before is not None else ()):
            if here.code is not last.code:
                return None
            if here.line != last.line:
                return None if _are_in_branches(here.code, here.line, last.line) else n
        return None

    def is_below(self, before: StepPlace | None) -> bool:
        """True where it stands below the step that was taken last, in the same call of a function, and in no loop that
        this does not stand in.
        """
        if before is None or (before.frame, before.code) != (self.frame, self.code) or before.line >= self.line:
            return False
        return scope_of(self.code) is not None and not _own_loops(self, before)


@dataclass(slots=True)
class LastPlace:
    """Of the step that was taken last. `repeated`: the one before it was taken there too; `by_turns`: by another
    optimizer, as in a loop over several.
    """

    place: StepPlace | None = None
    repeated: bool = False
    by: int = 0
    by_turns: bool = False

    def begins_next(self, here: StepPlace, *, first: bool, is_new: bool) -> bool | None:
        """Whether a step here stands in the pass after the last; None where the program does not show it. `first`: its
        optimizer has not stepped before; `is_new`: it was made since the last step, as for a copy that is trained.
        """
        if here.follows(self.place) or here.stands_above(self.place) or here.has_loop_since(self.place):
            return True
        in_loop = self.by_turns and not is_new and here.is_at(self.place)
        return False if first and (in_loop or here.is_in_pass_of(self.place, repeated=self.repeated)) else None

    def taken(self, here: StepPlace | None, by: int) -> None:
        self.by_turns = by != self.by and here is not None and here.is_at(self.place)
        self.place, self.repeated, self.by = here, here == self.place, by


def _own_loops(here: StepPlace, last: StepPlace) -> list[ast.For | ast.While]:
    """Those around the one place that do not hold the other, in the same function."""
    return [loop for loop in here.loops if not holds_line(loop, last.line)]


@lru_cache(maxsize=256)
def _runs_backward(loop: ast.For | ast.While) -> bool:
    return any(isinstance(node, ast.Attribute) and "backward" in node.attr for node in ast.walk(loop))


@lru_cache(maxsize=256)
def _loops_around(code: CodeType, line: int) -> tuple[ast.For | ast.While, ...]:
    scope = scope_of(code)
    return () if scope is None else tuple(loops_at(scope, line))


@lru_cache(maxsize=256)
def _are_in_branches(code: CodeType, one: int, other: int) -> bool:
    scope = scope_of(code)
    return scope is not None and are_in_branches(scope, one, other)
