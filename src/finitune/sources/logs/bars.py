"""Progress lines with a loss in them: Lightning, Ludwig, plain loops (`step 12: loss 2.31, grad_norm 0.8, lr 1e-4`)."""

from __future__ import annotations

import re

from finitune.sources.logs.reading import Notes, number_in

_NUMBER = rb"([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|NaN|inf|Infinity))(?![\w.])"
_LOSS = re.compile(
    rb"(?<![\w'\"-])(?:[tT]rain(?:ing)?[_ /]?)?[lL]oss(?:_step)?(?: ?[=:] ?|\s+is\s+|\s+)['\"]?" + _NUMBER
)
_NORM = re.compile(rb"(?<!\w)(?:grad(?:ient)?[_ ]?norm|gnorm)(?: ?[=:] ?|\s+)" + _NUMBER, re.IGNORECASE)
_RATE = re.compile(rb"(?<!\w)(?:lr|learning[_ ]rate)(?: ?[=:] ?|\s+)" + _NUMBER, re.IGNORECASE)
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) \[")
_STEP = re.compile(rb"(?<!\w)(?:global[_ ])?(?:steps?|iter(?:ation)?)(?: ?[=:#]? ?)(\d{1,12})(?![\w.])", re.IGNORECASE)
_EPOCH = re.compile(rb"[eE]poch[ :=]*(\d{1,6})")
_ELSEWHERE = re.compile(rb"eval|valid|test(?:ing)?\b|sanity", re.IGNORECASE)


def read(text: bytes, line: int, notes: Notes) -> bool:
    """True when the line tells the loss of a step."""
    found = _LOSS.search(text)
    loss = number_in(found[1]) if found else None
    if found is None or loss is None:
        return False
    bar, own = _BAR.search(text), _STEP.search(text)
    if _ELSEWHERE.search(text, 0, found.start()):
        return False
    values = {"loss": loss}
    for name, pattern in (("grad_norm", _NORM), ("lr", _RATE)):
        number = pattern.search(text)
        value = number_in(number[1]) if number else None
        if value is not None:
            values[name] = value
    step = None
    if bar:
        epoch = _EPOCH.search(text)
        step = int(bar[1]) + (int(epoch[1]) * int(bar[2]) if epoch else 0)
    elif own:
        step = int(own[1])
    elif (
        not re.search(rb"\d", text[: found.start()])
        and len(values) == 1
        and b"=" not in found[0]
        and b":" not in found[0]
    ):
        return False  # prose
    notes.row(values, line, step=step)
    return True
