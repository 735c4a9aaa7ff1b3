"""What `--inject KIND:MODULE:STEP[:RANK]` says."""

from __future__ import annotations

from dataclasses import dataclass

from finitune.finding import UnreadableInput

KINDS = ("nan", "inf", "bitflip", "overflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault to plant: in the named module, at an optimizer step from 1, on one rank or on all."""

    kind: str
    module: str
    step: int
    rank: int | None = None

    @staticmethod
    def parse(text: str) -> Injection:
        """Raises UnreadableInput, saying what was expected."""
        parts = text.split(":")
        if len(parts) not in (3, 4) or parts[0] not in KINDS or not all(p.isdigit() for p in parts[2:]):
            expected = f"KIND:MODULE:STEP[:RANK] with KIND one of {', '.join(KINDS)}"
            raise UnreadableInput(f"--inject {text}: expected {expected}")
        return Injection(
            kind=parts[0], module=parts[1], step=int(parts[2]), rank=int(parts[3]) if len(parts) == 4 else None
        )
