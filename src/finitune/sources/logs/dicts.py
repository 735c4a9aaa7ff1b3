"""Records of HF Trainer, TRL, Axolotl and LLaMA-Factory: `{'loss': 0.0, 'grad_norm': nan, ...}`, one per logging step.

transformers 5 prints the values as strings. A terminal may have wrapped the record, and processes that share a
terminal print into each other: a record is what stands between one brace and the next.
"""

from __future__ import annotations

import re
from array import array
from functools import lru_cache

from finitune.sources.logs.reading import Notes, number_in

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
_TELLS = re.compile(rb"(['\"])([\w/. ()-]{1,60})\1: (['\"]?)[^,'\"{}\[\]\n]{1,40}\3(?:, |\}$)")
AT_ONCE = 64 * 2**10
"""Bytes of successive records that are read at once, or not."""
_BAR = re.compile(rb"(\d{1,9})/\d{1,9} \[")
_STEP = re.compile(rb"['\"](?:global_step|step|current_steps)['\"]: ?(\d{1,12})(?![\d.])")
"""The last is that of `trainer_log.jsonl`, which LLaMA-Factory writes."""
NAMES = {
    b"loss": "loss", b"grad_norm": "grad_norm", b"learning_rate": "lr", b"lr": "lr", b"loss_scale": "loss_scale",
    b"eval_loss": "eval_loss", b"train/loss": "loss", b"train/grad_norm": "grad_norm",
}  # fmt: skip
LOOK_BACK = 200


def read(data: bytes, begin: int, end: int, line: int, notes: Notes) -> int:
    """Records that begin in this line; returns where the last one ends (it may be lines below), 0 for none."""
    at, done = data.find(b"{", begin, end), 0
    while 0 <= at < end:
        usual = _USUAL.match(data, at)
        if usual:
            loss, norm, rate, epoch = map(float, usual.groups())
            values = {"loss": loss, "grad_norm": norm, "lr": rate}
            notes.row(values, line, step=_shown(data[max(0, at - LOOK_BACK) : at], notes), epoch=epoch)
            done = after = usual.end()
        elif _OPENS.match(data, at) and (found := RECORD.match(data, at)):
            after = found.end()
            body = found[1].replace(b"\n", b"").replace(b"\r", b"")
            if _record(body, data[max(0, at - LOOK_BACK) : at], line, notes):
                done = after
        else:
            after = at + 1
        at = data.find(b"{", after, end)
    return done


def many(data: bytes, begin: int, line: int, notes: Notes) -> int:
    """Records alike, one to a line from `begin` on, at once: a log may consist of them.

    Returns where the last of these lines ends, with its line feed; 0 where anything else stands between them in the
    next `AT_ONCE` bytes: then `read` takes them one by one.
    """
    first = RECORD.match(data, begin)
    if first is None or not data.startswith(first[0][:8], first.end() + 1):
        return 0
    alike = _alike(tuple(_TELLS.findall(first[0])))
    end = data.rfind(b"\n", begin, begin + AT_ONCE) + 1
    if alike is None or not end:
        return 0
    found = alike.findall(data, begin, end)
    if len(found) != data.count(b"\n", begin, end):
        return 0
    try:
        numbers = [array("d", map(float, column)) for column in zip(*found, strict=True)]
    except ValueError:
        return 0
    columns = dict(zip(alike.groupindex, numbers, strict=True))
    epochs = columns.pop("epoch", None)
    return end if notes.successive(columns, line, epochs) else 0


@lru_cache(maxsize=16)
def _alike(told: tuple[tuple[bytes, bytes, bytes], ...]) -> re.Pattern[bytes] | None:
    """A whole line with a record of these keys (and their quotes), a group for each number of ours."""
    names = [NAMES.get(key, "epoch" if key == b"epoch" else "") for _, key, _ in told]
    known = [name for name in names if name]
    if "loss" not in known or len(known) == 1 or len(known) > len(set(known)):
        return None
    if any(b"step" in key or key.startswith(b"reward") for _, key, _ in told):
        return None
    parts = [
        re.escape(quote + key + quote + b": " + around)
        + (b"(?P<%b>[-+.0-9a-zA-Z]{1,40})" % name.encode() if name else rb"[^,'\"{}\n]{1,40}")
        + around
        for name, (quote, key, around) in zip(names, told, strict=True)
    ]
    return re.compile(rb"(?m)^\{" + b", ".join(parts) + rb"\}\r?\n")


def _record(body: bytes, before: bytes, line: int, notes: Notes) -> bool:
    values: dict[str, float] = {}
    epoch = None
    for key, text in _PAIR.findall(body):
        name = NAMES.get(key)
        if name:
            value = number_in(text)
            if value is not None:
                values[name] = value
        elif key == b"epoch":
            epoch = number_in(text)
        elif key.startswith(b"reward"):
            notes.attempt.rewards = True
    if "loss" not in values and "eval_loss" not in values:
        return False
    if b"step" in body and (own := _STEP.search(body)):
        notes.row(values, line, step=int(own[1]), epoch=epoch)
        return True
    notes.row(values, line, step=_shown(before, notes), epoch=epoch)
    return True


def _shown(before: bytes, notes: Notes) -> int | None:
    """The step that a progress bar just before the record shows; None where there is none."""
    if b"it/s" not in before and b"s/it" not in before:
        return None
    at = before.rfind(b" [")
    bar = _BAR.search(before, max(0, at - 20), at + 2)
    shown = int(bar[1]) if bar else 0
    return shown if shown > notes.attempt.last_step else None
