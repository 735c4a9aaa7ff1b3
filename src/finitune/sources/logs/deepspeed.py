"""Lines of DeepSpeed's loss scaler and of its progress (`step=10, skipped=3, lr=[...]`), and of Megatron."""

from __future__ import annotations

import re

from finitune.sources.logs.reading import Notes, number_in

_ATTEMPTED = re.compile(
    rb"[Rr]ank (\d{1,6})\b.{0,60}?[Aa]ttempted loss scale: ?([\d.e+]+)(?:, reducing to ([\d.e+]+))?"
)
_STEP = re.compile(rb"\bstep=(\d{1,12}), skipped=(\d{1,12})(?:, lr=\[([^\]]{1,200})\])?")
_MEGATRON = re.compile(
    rb"iteration\s+(\d{1,12})\s*/.{0,400}?lm loss: ([-+.\dEenaif]+)(?:.{0,80}?loss scale: ([\d.E+]+))?"
    rb"(?:.{0,40}?grad norm: ([-+.\dEenaif]+))?"
)


def read(text: bytes, line: int, notes: Notes) -> bool:
    """True when the line was one of DeepSpeed's own."""
    if b"oss scale" in text:
        if b"already at minimum" in text:
            notes.say(
                "scale-at-minimum",
                text[max(0, text.find(b"Current loss scale")) :].decode(errors="replace").strip(),
                line,
            )
            return True
        found = _ATTEMPTED.search(text)
        if found:
            rank = found[1].decode()
            if not notes.count("overflow") or f"rank {rank}" == _first_rank(notes):
                scale = number_in(found[3] or found[2])
                notes.skipped(line, scale)
            notes.say("overflow", f"rank {rank}", line)
            return True
    if b"iteration" in text and (found := _MEGATRON.search(text)):
        names = ("loss", "loss_scale", "grad_norm")
        values = {n: v for n, t in zip(names, found.groups()[1:], strict=True) if t and (v := number_in(t)) is not None}
        notes.row(values, line, step=int(found[1]))
        return True
    if b"skipped=" in text and (found := _STEP.search(text)):
        rate = number_in(found[3].split(b",")[0]) if found[3] else None
        step = int(found[1])
        if step > notes.attempt.last_step:
            notes.row({"lr": rate} if rate is not None else {}, line, step=step)
        return True
    return False


def _first_rank(notes: Notes) -> str:
    return next((one.text for one in notes.said if one.kind == "overflow"), "")
