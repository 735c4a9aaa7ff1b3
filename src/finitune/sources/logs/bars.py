"""Progress lines with a loss in them: Lightning, Ludwig, plain loops (`step 12: loss 2.31, grad_norm 0.8, lr 1e-4`)."""

from __future__ import annotations

import re

from finitune.sources.logs.attempt import Notes, number_in

_NUMBER = rb"([-+]?(?:\d{1,20}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?|nan|NaN|inf|Infinity))(?:(?<=[nf])\.0)?(?![\w.])"
"""Lightning's bar pads what is not finite too: `nan.0`."""
_LOSS = re.compile(
    rb"(?<![\w'\"-])(?:[tT]rain(?:ing)?[_ /]?)?[lL]oss(?:_step)?(?: ?[=:] ?|\s{1,20}is\s{1,20}|\s{1,20})['\"]?"
    + _NUMBER
)
_NORM = re.compile(rb"(?<!\w)(?:grad(?:ient)?[_ ]?norm|gnorm)(?: ?[=:] ?|\s{1,20})" + _NUMBER, re.IGNORECASE)
_RATE = re.compile(rb"(?<!\w)(?:lr|learning[_ ]rate)(?: ?[=:] ?|\s{1,20})" + _NUMBER, re.IGNORECASE)
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) (?:\[|\d{1,3}:\d\d:\d\d \xe2\x80\xa2)")
"""That of tqdm, and that of rich as Lightning draws it: `12/40 0:00:01 \u2022`."""
_STEP = re.compile(rb"(?<!\w)(?:global[_ ])?(?:steps?|iter(?:ation)?)(?: ?[=:#]? ?)(\d{1,12})(?![\w.])", re.IGNORECASE)
_EPOCH = re.compile(rb"[eE]poch[ :=]{0,20}(\d{1,6})")
_ELSEWHERE = re.compile(rb"eval|valid|test(?:ing)?\b|sanity", re.IGNORECASE)
RICH_DOT = b" \xe2\x80\xa2"
BEFORE = 20
"""So far before its last word does the name of a number begin."""


def read(text: bytes, line: int, notes: Notes) -> bool:
    """True when the line tells the loss of a step."""
    at = text.find(b"oss")
    found = _LOSS.search(text, max(0, at - BEFORE)) if at >= 0 else None
    loss = number_in(found[1]) if found else None
    if found is None or loss is None or _ELSEWHERE.search(text, 0, found.start()):
        return False
    values = {"loss": loss}
    lower = text.lower()
    for name, pattern, word in (("grad_norm", _NORM, b"norm"), ("lr", _RATE, b"lr"), ("lr", _RATE, b"rate")):
        at = lower.find(word)
        number = pattern.search(text, max(0, at - BEFORE)) if at >= 0 else None
        value = number_in(number[1]) if number else None
        if value is not None:
            values[name] = value
    at = text.find(b" [")
    if at < 0 and (dot := text.find(RICH_DOT)) > 0:
        at = dot - len(b" 00:00:00")
    bar = _BAR.search(text, max(0, at - BEFORE)) if at > 0 else None
    step = None
    if bar:
        epoch = _EPOCH.search(text)
        step = int(bar[1]) + (int(epoch[1]) * int(bar[2]) if epoch else 0)
    elif own := _STEP.search(text) if b"step" in lower or b"iter" in lower else None:
        step = int(own[1])
    elif (
        not re.search(rb"\d", text[: found.start()])
        and len(values) == 1
        and b"=" not in found[0]
        and b":" not in found[0]
    ):
        return False  # prose
    notes.row(values, line, step=step, alike=True)
    return True
