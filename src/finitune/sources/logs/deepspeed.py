"""Lines of DeepSpeed's loss scalers and of its progress (`step=10, skipped=3, lr=[...]`), and of Megatron.

A skipped step is printed in three spellings: by ZeRO's scaler (`OVERFLOW! Rank 0 Skipping step. Attempted loss scale:
65536, reducing to 32768`, or with its hysteresis; without a scale in bfloat16), by that of ZeRO 0 in two lines (`Grad
overflow on iteration: 3`, `Reducing dynamic loss scale from 65536 to 32768`), and by the count in the progress.
"""

from __future__ import annotations

import math
import re

from finitune.sources.logs.parsed_log import ParsedLog, number_in

OVERFLOW = b"OVERFLOW"
_NUMBER = rb"(\d[\d.e+-]{0,40})"
_ATTEMPTED = re.compile(
    rb"(?:[Rr]ank (\d{1,6})\b[^\n]{0,60}?)?[Aa]ttempted loss scale: ?%b(?:, reducing to %b)?" % (_NUMBER, _NUMBER)
)
FINISHED = re.compile(rb"(?:reducing to [\d.e+-]{1,40}|hysteresis to -?\d+|not updated\.|Skipping step\.?)\s{0,9}\Z")
"""The end of a whole message about an overflow."""
_SKIPPING = re.compile(rb"OVERFLOW! (?:Rank (\d{1,6}) )?Skipping step")
_ITERATION = re.compile(rb"Grad overflow on iteration:? (\d{1,12})")
_CHANGED = re.compile(rb"(?:Reducing|Increasing) dynamic loss scale from [\d.e+-]{1,40} to %b" % _NUMBER)
_STEP = re.compile(rb"\bstep=(\d{1,12}), skipped=(\d{1,12})(?:, lr=\[([^\]]{1,200})\])?")
_MEGATRON = re.compile(
    rb"iteration\s{1,20}(\d{1,12})\s{0,20}/(?:.{0,300}?learning rate: ([\d.E+-]{1,40}))?"
    rb".{0,400}?lm loss: ([-+.\dEenaif]{1,40})"
    rb"(?:.{0,80}?loss scale: ([\d.E+]{1,40}))?(?:.{0,40}?grad norm: ([-+.\dEenaif]{1,40}))?"
)


MOST_GROUPS = 16
PRINTED_DIGITS = 2e-4
"""Relative: a norm of 1.41421 may be printed as 1.414."""


def groups_written_as(norm: float) -> int | None:
    """How many parameter groups of norm -1 DeepSpeed writes as this norm; None for a number that is no such root.

    It writes -1 for a group whose norm is not finite, squares, sums and takes the root.
    """
    if not 1 <= norm < math.inf:
        return None
    groups = round(norm * norm)
    near = math.isclose(norm, math.sqrt(groups), rel_tol=PRINTED_DIGITS)
    return groups if groups <= MOST_GROUPS and near else None


def read(text: bytes, line: int, log: ParsedLog) -> bool:
    """True when the line was one of DeepSpeed's own."""
    if text.find(b"lm loss:") >= 0 and (found := _MEGATRON.search(text, max(0, text.find(b"iteration")))):
        names = ("lr", "loss", "loss_scale", "grad_norm")
        values = {n: v for n, t in zip(names, found.groups()[1:], strict=True) if t and (v := number_in(t)) is not None}
        log.row(values, line, step=int(found[1]))
        return True
    if text.find(b"oss scale") >= 0 or text.find(b"verflow") >= 0 or text.find(OVERFLOW) >= 0:
        return _scaler(text, line, log)
    if text.find(b"skipped=") >= 0 and (found := _STEP.search(text)):
        _progress(int(found[1]), int(found[2]), number_in(found[3].split(b",")[0]) if found[3] else None, line, log)
        return True
    return False


def _scaler(text: bytes, line: int, log: ParsedLog) -> bool:
    if b"already at minimum" in text:
        at = max(0, text.find(b"Current loss scale"))
        log.message("scale-at-minimum", text[at : at + 200].decode(errors="replace").strip(), line)
        return True
    found = _ATTEMPTED.search(text) or _SKIPPING.search(text) or _ITERATION.search(text)
    if found:
        rank = (found[1] or b"0").decode() if found.re is not _ITERATION else "0"
        if log.first("overflow", rank):
            scale = number_in(found[3] or found[2]) if found.re is _ATTEMPTED else None
            log.skipped(line, scale)
        # in bfloat16 nothing is scaled, and no scale is printed
        log.message("overflow-unscaled" if found.re is _SKIPPING else "overflow", f"rank {rank}", line)
        return True
    changed = _CHANGED.search(text)
    scale = number_in(changed[1]) if changed else None
    if scale is not None:
        log.attempt.add("loss_scale", log.attempt.last_step, scale, line)
    return changed is not None


def _progress(step: int, skipped: int, rate: float | None, line: int, log: ParsedLog) -> None:
    """The newest step, and whether all since the progress before it were skipped where no line reports them."""
    now = log.attempt
    if step <= now.last_step:
        if step == now.last_step and rate is not None:
            now.add("lr", step, rate, line)
        return
    before = now.progress if now.progress[0] < step else (0, 0)
    now.progress = (step, skipped)
    values = {} if rate is None else {"lr": rate}
    if skipped and not log.count("overflow"):
        values["skipped"] = float(skipped - before[1] >= step - before[0])
    log.row(values, line, step=step)
