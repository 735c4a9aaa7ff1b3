"""Where in the user's program an optimizer steps: whether two do so in the same pass of a loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from finitune.monitor.replay.source_line import user_frames
from finitune.monitor.replay.source_tree import are_in_branches, holds_line, loops_at, scope_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlace:
    frame: int
    """The identity of the innermost running frame of the user's; it is not kept alive."""
    code: CodeType
    line: int

    @staticmethod
    def now() -> StepPlace | None:
        frame = next(user_frames(), None)
        return None if frame is None else StepPlace(frame=id(frame), code=frame.f_code, line=frame.f_lineno)

    def follows(self, before: StepPlace | None) -> bool:
        """True where it is the same place as that of the step that was taken last, or in another branch of an `if`, in
        the next pass of the only loop that stands around it.
        """
        if before is None or (before.frame, before.code) != (self.frame, self.code):
            return False
        if self.line != before.line and not _are_in_branches(self.code, self.line, before.line):
            return False
        loops = [_loops_around(frame.f_code, frame.f_lineno) for frame in user_frames()]
        return loops[0] == sum(loops) == 1  # in this function itself, whose frame is the same one for certain

    def is_in_pass_of(self, before: StepPlace | None) -> bool:
        """True where it stands below the step that was taken last, in the same call of a function, and within the
        innermost loop that this stands in.
        """
        if before is None or not self._stands_below(before) or (scope := scope_of(self.code)) is None:
            return False
        if _are_in_branches(self.code, self.line, before.line):
            return False
        loops = loops_at(scope, before.line)
        return not loops or holds_line(loops[-1], self.line)

    def is_below(self, before: StepPlace | None) -> bool:
        """True where it stands below the step that was taken last, in the same call of a function, and in no loop that
        this does not stand in.
        """
        if before is None or not self._stands_below(before) or (scope := scope_of(self.code)) is None:
            return False
        return all(holds_line(loop, before.line) for loop in loops_at(scope, self.line))

    def _stands_below(self, before: StepPlace) -> bool:
        return (before.frame, before.code) == (self.frame, self.code) and before.line < self.line


@lru_cache(maxsize=256)
def _loops_around(code: CodeType, line: int) -> int:
    scope = scope_of(code)
    return 0 if scope is None else len(loops_at(scope, line))


@lru_cache(maxsize=256)
def _are_in_branches(code: CodeType, one: int, other: int) -> bool:
    scope = scope_of(code)
    return scope is not None and are_in_branches(scope, one, other)
