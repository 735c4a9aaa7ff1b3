"""Records of HF Trainer, TRL, Axolotl and LLaMA-Factory: `{'loss': 0.0, 'grad_norm': nan, ...}`, one per logging step.

transformers 5 prints the values as strings. A terminal may have wrapped the record, and processes that share a
terminal print into each other: a record is what stands between one brace and the next.
"""

from __future__ import annotations

import re

from finitune.sources.logs.names import SUMMARY, meant
from finitune.sources.logs.parsed_log import ParsedLog, number_in

RECORD = re.compile(rb"\{([^{}]{1,4000})\}")
_OPENS = re.compile(rb"\{\s?['\"][\w/ ]{1,60}['\"]:")
_PAIR = re.compile(
    rb"['\"]([\w/]{1,60})['\"]\s?:\s?['\"]?"
    rb"([-+]?\d[\d.]{0,40}(?:[eE][-+]?\d{1,4})?|[-+]?nan|[-+]?inf|NaN|-?Infinity)(?=['\"]?\s{0,9}(?:,|\Z))"
)
_VALUE = rb"'?(nan|inf|-?\d+(?:\.\d+)?(?:e[-+]\d+)?)'?"
_USUAL = re.compile(
    rb"\{'loss': %b, 'grad_norm': %b, 'learning_rate': %b, 'epoch': %b\}" % (_VALUE, _VALUE, _VALUE, _VALUE)
)
"""The record of HF Trainer as it is nearly always, read at once."""
_BAR = re.compile(rb"(\d{1,9})/\d{1,9} \[")
_STEP = re.compile(
    rb"['\"](?:global_step|_?step|iter(?:ation)?|num_updates|current_steps|global_step/max_steps)['\"]: ?['\"]?"
    rb"(\d{1,12})(?![\d.])"
)
"""The last two are those of `trainer_log.jsonl`, which LLaMA-Factory writes, and of MS-Swift ('5/873')."""
_COUNTED = (b"step", b"iter", b"updates")
_SUMMARY = SUMMARY.encode()
LOOK_BACK = 200


def read(data: bytes, begin: int, end: int, line: int, log: ParsedLog) -> int:
    """Records that begin in this line; returns where the last one ends (it may be lines below), 0 for none."""
    at, done = data.find(b"{", begin, end), 0
    while 0 <= at < end:
        usual = _USUAL.match(data, at)
        if usual:
            loss, norm, rate, epoch = map(float, usual.groups())
            values = {"loss": loss, "grad_norm": norm, "lr": rate}
            log.row(values, line, step=_shown(data[max(0, at - LOOK_BACK) : at], log), epoch=epoch)
            done = after = usual.end()
        elif _OPENS.match(data, at) and (found := RECORD.match(data, at)):
            after = found.end()
            body = found[1].replace(b"\n", b"").replace(b"\r", b"")
            if _record(body, data[max(0, at - LOOK_BACK) : at], line, log):
                done = after
        else:
            after = at + 1
        at = data.find(b"{", after, end)
    return done


def _record(body: bytes, before: bytes, line: int, log: ParsedLog) -> bool:
    if _SUMMARY in body:
        return False
    values: dict[str, float] = {}
    epoch, rewards = None, False
    for key, text in _PAIR.findall(body):
        name, policies = meant(key)
        rewards = rewards or policies
        if name:
            value = number_in(text)
            if value is not None:
                values[name] = value
        elif key == b"epoch":
            epoch = number_in(text)
    log.attempt.rewards |= rewards
    if "loss" not in values and "eval_loss" not in values:
        return False
    if any(word in body for word in _COUNTED) and (own := _STEP.search(body)):
        log.row(values, line, step=int(own[1]), epoch=epoch)
        return True
    log.row(values, line, step=_shown(before, log), epoch=epoch)
    return True


def _shown(before: bytes, log: ParsedLog) -> int | None:
    """The step that a progress bar just before the record shows; None where there is none."""
    if b"it/s" not in before and b"s/it" not in before:
        return None
    at = before.rfind(b" [")
    bar = _BAR.search(before, max(0, at - 20), at + 2)
    shown = int(bar[1]) if bar else 0
    return shown if shown > log.attempt.last_step else None
