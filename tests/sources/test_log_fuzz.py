"""Any bytes at all are given to the readers of logs: no crash, time that grows linearly, places that are right."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import math
import pkgutil
import re
import struct
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import finitune.diagnosis
import finitune.sources.logs
from finitune.finding import UnreadableInput
from finitune.sources import logs
from finitune.sources.logs import tensorboard
from finitune.sources.logs.files import FORMATS

PUMPED = 16_000
"""Characters: a search that is linear takes about a millisecond, a quadratic one a quarter of a second or more."""
BOUND = 0.05
"""Seconds, beyond which it is looked at how the time grows."""
QUADRATIC = 8.0
"""Times as long for four times the text; a linear search takes 4, a quadratic one 16. Half of `PUMPED` is several
times as long as the longest bounded repeat, whose time grows with the square up to its bound."""


def patterns(packages: Sequence[ModuleType], beside: Sequence[str] = ()) -> dict[str, re.Pattern[Any]]:
    """Every compiled expression of these packages, and of modules of `sources` beside, by where it stands."""
    found: dict[str, re.Pattern[Any]] = {}

    def look(value: object, place: str, depth: int = 0) -> None:
        if isinstance(value, re.Pattern):
            found[place] = value
        elif isinstance(value, (tuple, list, dict)) and depth < 3:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                look(item, f"{place}[{key}]", depth + 1)

    modules = [f"finitune.sources.{name}" for name in beside]
    for package in packages:
        modules += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for module in modules:
        for name, value in vars(importlib.import_module(module)).items():
            look(value, f"{module}.{name}")
    return found


def shortest(nodes: Any) -> tuple[str, list[tuple[str, str]]]:
    """The shortest text that these nodes match, roughly; and at each repeat what comes before and what repeats."""
    text, repeats = "", list[tuple[str, str]]()
    for kind, value in nodes:
        if kind is _constants.LITERAL:
            text += chr(value)
        elif kind is _constants.NOT_LITERAL:
            text += "a" if value != ord("a") else "b"
        elif kind is _constants.ANY:
            text += "a"
        elif kind is _constants.IN:
            text += member(value)
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            least, most, inner = value
            one, deeper = shortest(inner)
            repeats += [(text + before, unit) for before, unit in deeper]
            if most > 1:
                repeats.append((text, one))
            text += one * least
        elif kind is _constants.SUBPATTERN:
            one, deeper = shortest(value[3])
            repeats += [(text + before, unit) for before, unit in deeper]
            text += one
        elif kind is _constants.BRANCH:
            branches = [shortest(branch) for branch in value[1]]
            repeats += [(text + before, unit) for _, deeper in branches for before, unit in deeper]
            text += branches[0][0]
        elif kind is _constants.ATOMIC_GROUP:
            text += shortest(value)[0]
    return text, repeats


def member(choices: Any) -> str:
    negated = choices[0][0] is _constants.NEGATE
    candidates = [chr(n) for n in (*range(97, 123), *range(32, 97), *range(123, 127), 9, 10, 13)]
    allowed = re.compile("[" + ("^" if negated else "") + "".join(map(spelled, choices[negated:])) + "]")
    return next(char for char in candidates if allowed.match(char))


def spelled(choice: tuple[Any, Any]) -> str:
    kind, value = choice
    if kind is _constants.LITERAL:
        return re.escape(chr(value))
    if kind is _constants.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}.get(
        str(value).removeprefix("CATEGORY_"), str(value).removeprefix("CATEGORY_NOT_")[0]
    )


def attacks(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Texts that make a backtracking matcher try most: each repeat pumped and then refused, each beginning again."""
    text, repeats = shortest(_parser.parse(pattern.pattern, pattern.flags))
    for before, unit in dict.fromkeys(repeats):
        if unit:
            for refused in "\0x":
                yield before + unit * (length // len(unit)) + refused
            yield unit * (length // len(unit)) + "\0"
    for cut in range(1, len(text)):
        yield text[:cut] * (length // cut)


def test_no_expression_takes_more_than_linear_time() -> None:
    found = patterns(
        [finitune.sources.logs, finitune.diagnosis],
        (
            "cases.workarounds",
            "configs.shell",
            "configs.launches",
            "configs.scheduler",
            "configs.interpolation",
            "configs.hydra",
            "configs.program.typed",
            "editing.shell_words",
            "weights.first_token",
        ),
    )
    assert len(found) > 90
    assert not too_slow(found)


@pytest.mark.slow
def test_no_phrase_takes_more_than_linear_time() -> None:
    found = patterns([], ["cases.statements"])
    assert len(found) > 100
    assert not too_slow(found)


def too_slow(found: Mapping[str, re.Pattern[Any]]) -> dict[str, float]:
    """Seconds by expression and text, of those above `BOUND` that grow faster than the text."""
    slow = dict[str, float]()
    for place, pattern in found.items():
        for number, attack in enumerate(attacks(pattern, PUMPED)):
            took = seconds(pattern, attack)
            if took <= BOUND:
                continue
            half, twice = (next(islice(attacks(pattern, n), number, None)) for n in (PUMPED // 2, PUMPED * 2))
            if fastest(pattern, twice) > QUADRATIC * fastest(pattern, half):
                slow[f"{place} {attack[:40]!r}"] = took
                break
    return slow


def seconds(pattern: re.Pattern[Any], text: str) -> float:
    subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    start = time.process_time()
    pattern.search(subject)
    return time.process_time() - start


def fastest(pattern: re.Pattern[Any], text: str) -> float:
    """Of three: another process may hold this one up."""
    return min(seconds(pattern, text) for _ in range(3))


@pytest.mark.slow
def test_a_quadratic_search_is_seen() -> None:
    assert too_slow({"quadratic": re.compile(r"a+b")})
    assert not too_slow({"linear": re.compile("|".join(f"a{{0,2000}}{n}" for n in range(3)))})


RECORD = "{'loss': '2.345', 'grad_norm': 'nan', 'learning_rate': '1.9e-05', 'epoch': '0.125'}"
SAMPLES = [
    f"\r  0%|          | 0/12 [00:00<?, ?it/s]\r       \r{RECORD}\n\r 17%|#6     | 2/12 [00:00<00:00, 42.7it/s]\r   \r",
    RECORD.replace("0.125", "0.25") + "\n{'eval_loss': '4.159', 'eval_runtime': '0.02', 'epoch': '0.25'}\n",
    (RECORD + "\n") * 40,
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n",
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1\n",
    "[Rank 0] step=10, skipped=3, lr=[0.001], mom=[(0.9, 0.999)]\n",
    "[INFO] Grad overflow on iteration: 17\n[INFO] Reducing dynamic loss scale from 64 to 32.0\n",
    "Epoch 1:  40%|####  | 2/5 [00:00<00:00, 339.96it/s, v_num=0, train_loss_step=nan, val_loss=0.421]\r",
    "Epoch 1:  60%|#### | 3/5 [00:00<00:00, 339.96it/s, train_loss=1.5, lr=1e-5]\nstep 3: loss nan grad_norm 3\n",
    "Step\tTraining Loss\tValidation Loss\n10\t2.5\tNo log\n20\t0.000000\tnan\n",
    "<tr>\n<th>Step</th>\n<th>Training Loss</th></tr>\n<tr>\n<td>10</td>\n<td>2.5</td></tr></table>\n",
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0\nDeepSpeed info: version=0.12.5\n",
    "Traceback (most recent call last):\nTarget 999 is out of bounds\nfp16_enabled ........ True\n",
    "epoch,step,train_loss_step,val_loss\n0,10,2.5,\n0,20,nan,\n0,20,,2.4\n",
    json.dumps({"log_history": [{"loss": 2.5, "step": 5, "epoch": 0.1}, {"eval_loss": 2.0, "step": 5}]}, indent=2),
    "[rank1]: iteration 5/ 80 | lm loss: 2.5E+00 | loss scale: 1.0 | grad norm: 1.25 |\n",
]
NOISE = st.sampled_from(
    [b"\n", b"\r", b"{", b"}", b"nan", b"'", b"\x1b[A", b"\0", b"\xff", b"9" * 30, b"1e999", b" ", b"\t"]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Real lines, cut, repeated and sown with noise; now and then packed, wide, or damaged after packing."""
    text = "".join(draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=4))).encode()
    for _ in range(draw(st.integers(0, 6))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.integers(begin, min(len(text), begin + 60)))
        middle = draw(NOISE | st.binary(max_size=8) | st.just(text[begin:end] * 2))
        text = text[:begin] + middle + text[end:]
    wrap = draw(st.sampled_from(["", "", "", "gzip", "utf-16", "events"]))
    if wrap == "gzip":
        packed = gzip.compress(text)
        return packed[: draw(st.integers(2, len(packed)))]
    if wrap == "events":
        head = struct.pack("<Q", draw(st.sampled_from([len(text), 2**20, 2**63])))
        return head + struct.pack("<I", tensorboard._masked_crc(head)) + text
    return text.decode("latin-1").encode("utf-16") if wrap else text


@settings(max_examples=300, deadline=None)
@given(data=mutated() | st.binary(max_size=300))
def test_no_bytes_break_a_reader_and_places_are_right(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.log"
    path.write_bytes(data)
    try:
        reading = logs.read(path)
    except UnreadableInput:
        return
    if any(module.recognises(data) for module in FORMATS) or data.startswith((b"\x1f\x8b", b"\xff\xfe")):
        return
    lines = data.split(b"\n")
    for attempt in reading.attempts:
        for name, trace in attempt.traces.items():
            for step, value, line in zip(trace.steps, trace.values, trace.lines, strict=True):
                assert -1 < step < 2**62
                # a record or a message may have been wrapped: then it begins in this line
                near = b"".join(lines[line - 1 : line + 40]).replace(b"\r", b"")
                near = near[: len(lines[line - 1]) + 200].rpartition(b"}")[0] or near[:200]
                assert 1 <= line <= len(lines)
                told = name == "skipped" or spelled_in(value, near) or spelled_in(value, lines[line - 1])
                assert told, (name, value, line)
    for said in reading.messages:
        assert 1 <= said.line <= len(lines)
        assert len(said.text) <= 200
        assert said.text.isprintable() or "\ufffd" in said.text


def spelled_in(value: float, text: bytes) -> bool:
    if not math.isfinite(value):
        return any(word in text for word in (b"nan", b"NaN", b"inf", b"Inf", b"e999", b"9e9", b"E", b"e"))
    return any(float(number) == value for number in re.findall(rb"\d+\.?\d*(?:[eE][-+]?\d+)?", text)) or (
        any(float(number) == abs(value) for number in re.findall(rb"(?=((?<!\d)\d+\.?\d*(?:[eE][-+]?\d+)?))", text))
    )


def giants() -> dict[str, bytes]:
    deep = b'{"log_history": ' + b"[" * 200_000
    liar = struct.pack("<Q", 60 * 2**20)
    liar += struct.pack("<I", tensorboard._masked_crc(liar)) + b"\x2a\xff\xff\xff\xff\x7f" * 1000
    titles = b"step,loss," + b"loss," * 100_000 + b"\n1,2.5\n"
    return {
        "one line": b"the loss x" * 300_000,
        "drawn": b"\rloss=1.5, " * 40_000,
        "restarts": b"{'loss': 1.5, 'epoch': 1}\n{'loss': 1.5, 'epoch': 0.5}\n" * 10_000,
        "ranks": b"".join(b"[rank%d]: step 3: loss 2.5\n" % n for n in range(15_000)),
        "errors": b"RuntimeError: probability tensor contains either\n" * 30_000,
        "tables": b"<th>Training Loss\n" * 30_000,
        "other tables": b"Step | Training Loss\n" * 15_000,
        "deep": deep, "liar": liar, "titles": titles,
    }  # fmt: skip


@pytest.mark.parametrize("name", giants())
def test_giants_and_liars_take_bounded_memory_and_time(name: str, tmp_path: Path) -> None:
    """Quadratic time would be minutes; memory is a few chunks and what is kept."""
    path = tmp_path / "giant.log"
    path.write_bytes(giants()[name])
    tracemalloc.start()
    start = time.process_time()
    with contextlib.suppress(UnreadableInput):
        logs.read(path)
    took, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < 15
    assert peak < 150 * 2**20


def test_a_first_line_that_is_nearly_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"\x01\r,\n{'loss': 2.5}\n")
    assert logs.read(tmp_path / "x.log").attempts[0].trace("loss").lines[0] == 2
