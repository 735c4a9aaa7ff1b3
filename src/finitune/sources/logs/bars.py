"""Progress lines with a loss in them: Lightning, Ludwig, plain loops (`step 12: loss 2.31, grad_norm 0.8, lr 1e-4`)."""

from __future__ import annotations

import math
import re

from finitune.sources.logs.names import meant
from finitune.sources.logs.parsed_log import ParsedLog

_PAIR = re.compile(rb"([a-z_/-]{2,30})(?: is)?([\s=:#(]{1,20})['\"]?([-+]?[\dni][\d.e+nafity-]{0,40})(?!\w)")
"""A name, what stands between, and a number or what may be one, in lower case."""
COUNTS = {
    b"step": "step", b"steps": "step", b"global_step": "step", b"training/global_step": "step", b"iter": "step",
    b"iteration": "step", b"epoch": "epoch",
}  # fmt: skip
"""Names in lower case that count; they and the signals: the first of each in a line counts."""
SECOND_WORDS = {
    b"norm": ("grad_norm", re.compile(rb"grad(?:ient)? norm")), b"rate": ("lr", re.compile(rb"learning rate")),
    b"train": ("loss", re.compile(rb"\bloss train")),
}  # fmt: skip
"""Names of which only the second word stands before the number."""
SIGNALS = ("loss", "grad_norm", "lr", "kl")
POLICY_BAR = b", pg="
"""In the bar of OpenRLHF, which has no word for a loss."""
PADDED = {b"nan.0": math.nan, b"inf.0": math.inf, b"-inf.0": -math.inf}
"""Lightning's bar pads what is not finite too."""
_BAR = re.compile(rb"(\d{1,9})/(\d{1,9}) (?:\[|\d{1,3}:\d\d:\d\d \xe2\x80\xa2)")
"""That of tqdm, and that of rich as Lightning draws it: `12/40 0:00:01 \u2022`."""
_ELSEWHERE = re.compile(rb"eval|valid|test(?:ing)?\b|sanity")
RICH_DOT = b" \xe2\x80\xa2"
BEFORE = 20
"""So far before its bracket does the count of a bar begin."""
MOST_EPOCHS, MOST_STEPS = 10**6, 10**12


def read(text: bytes, line: int, log: ParsedLog) -> bool:
    """True when the line has the loss of a step."""
    at = text.find(b"oss")
    at = text.find(POLICY_BAR) if at < 0 else at
    if at < 0:
        return False
    lower, marked = text.lower().replace(b"np.float64(", b""), False
    values: dict[str, float] = {}
    for name, between, number in _PAIR.findall(lower):
        signal = COUNTS.get(name) or _signal(name, lower)
        if signal is None or signal in values:
            continue
        try:
            values[signal] = float(number)
        except ValueError:
            if number not in PADDED:
                continue
            values[signal] = PADDED[number]
        if signal == "loss":
            marked = not between.isspace()
            log.attempt.rewards |= meant(name)[1]
    if "loss" not in values or _ELSEWHERE.search(lower, 0, at):
        return False
    step, epoch = values.pop("step", None), values.pop("epoch", 0.0)
    if text.find(b"/") >= 0 and (bar := _bar(text)):
        step = bar[0] + (int(epoch) * bar[1] if 0 <= epoch < MOST_EPOCHS else 0)
    elif step is not None:
        step = int(step) if 0 <= step < MOST_STEPS and step.is_integer() else None
    elif len(values) == 1 and not marked and not re.search(rb"\d", text[:at]):
        return False  # prose
    log.row(values, line, step=step)
    return True


def _signal(name: bytes, line: bytes) -> str | None:
    """What a name in a line means."""
    if name in SECOND_WORDS:
        signal, whole = SECOND_WORDS[name]
        return signal if whole.search(line) else None
    signal = meant(name)[0]
    return signal if signal in SIGNALS else None


def _bar(text: bytes) -> tuple[int, int] | None:
    """How far the bar of this line is, and its length."""
    at = text.find(b" [")
    if at < 0 and (dot := text.find(RICH_DOT)) > 0:
        at = dot - len(b" 00:00:00")
    bar = _BAR.search(text, max(0, at - BEFORE)) if at > 0 else None
    return (int(bar[1]), int(bar[2])) if bar else None
