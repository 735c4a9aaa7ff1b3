"""What programs print about themselves before the first step: versions, dtype, card, engine settings -> facts.

What was tried against a bad number stands there too, or in the code lines of the traceback that ended the run.
"""

from __future__ import annotations

import re

from finitune.sources.cases import workarounds
from finitune.sources.logs.parsed_log import ParsedLog

_PACKAGE = (
    rb"(deepspeed|transformers|torch|pytorch|peft|trl|accelerate|bitsandbytes|flash[-_]attn|unsloth|lightning|ludwig)"
)
_CARD = rb"(V100|T4|P100|A100|A10G?|H[128]00|A800|L4|L40S?|RTX A?\d{4}(?: Ti)?)"
_ON = rb"(?:=True|'?\"?: ?True| True\b| \.{3,} True)"


def _half(flag: bytes, engine: bytes, dtype: bytes, lightning: bytes) -> re.Pattern[bytes]:
    """How a dtype is printed: as a flag, in DeepSpeed's dump, by LLaMA-Factory, by Lightning, on a command line."""
    return re.compile(
        rb"(?<!\w)%b(?:_enabled)?%b|(?<![a-z])%b \.{3,} True|(?:compute dtype: |Creating )torch\.%b|Using %b|"
        rb"--%b\b(?! ?=?\s?[Ff]alse)" % (flag, _ON, engine, dtype, lightning, flag)
    )


PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = tuple(
    (kind, pattern if isinstance(pattern, re.Pattern) else re.compile(pattern))
    for kind, pattern in (
        (
            "version",
            rb"(?im)(?<![\w/.-])" + _PACKAGE + rb"(?:[_ ]version)?['\"]?\s?(?:==|=|:|\xe2\x94\x82| v?(?=\d+\.\d))\s?"
            rb"['\"v]{0,2}(\d+\.\d+[\w.+]{0,20})",
        ),
        ("version", rb"(DeepSpeed) info: version=(\d+\.\d+[\w.]{0,20})"),
        ("version", rb"(Unsloth):? (\d{4}\.\d+[\w.]{0,10})"),
        ("float16", _half(b"fp16", b"float16_enabled", b"float16", b"16bit (?:Automatic|native)")),
        ("float16", rb"(?<!\w)Bfloat16 = FALSE"),  # Unsloth, of the card; it then trains in float16
        ("float16", rb"(?<![\w-])(?:fp)?16-(?:mixed|true)\b"),
        ("bfloat16", rb"(?<![\w-])bf16-(?:mixed|true)\b"),
        ("bfloat16", _half(b"bf16", b"bfloat16_enabled", b"bfloat16", b"bfloat16 Automatic")),
        (
            "card",
            rb"(?:NVIDIA |Tesla |GPU: |GeForce )" + _CARD + rb"\b",
        ),
        ("card", rb"(?<!\d)[1-9]\d?\s{0,2}(?:x|X|\*|\xc3\x97|\xe5\x8d\xa1|\xe5\xbc\xa0)\s{0,2}" + _CARD + rb"\b"),
        ("card", _CARD + rb"\s{0,2}(?:x|X|\*|\xc3\x97)\s{0,2}[1-9]\d?\b"),
        ("float16", rb"(?<!\w)" + _CARD + rb"[^\n\w]{1,6}(?:fp16|float16)\b(?!\W{0,4}[Ff]alse)"),
        ("bfloat16", rb"(?<!\w)" + _CARD + rb"[^\n\w]{1,6}(?:bf16|bfloat16)\b(?!\W{0,4}[Ff]alse)"),
        (
            "zero-stage",
            rb"zero_optimization_stage \.{3,} (\d)|['\"]?stage['\"]?: ?(\d)\b|Creating torch\.\w+ ZeRO stage (\d)",
        ),
        ("overlap", rb"['\"]?overlap_comm['\"]?(?:=|: ?)([Tt]rue|[Ff]alse)"),
        ("deepspeed", rb"\[deepspeed\]|DeepSpeed info:|\[(?:stage_1_and_2|stage3|logging|loss_scaler|engine)\.py:\d+:"),
        ("grouped-gemm", rb"grouped_mm|[Gg]rouped_?[Gg][Ee][Mm][Mm]|megablocks"),
        ("split-over-cards", rb"device_map['\"]?\s?[=:]\s?\{[^{}\n]{0,2000}: ?['\"]?(?:cuda:)?1\b"),
        ("8-bit", rb"load_in_8bit(?:=|'?\"?: ?| )True"),
        ("4-bit", rb"load_in_4bit(?:=|'?\"?: ?| )True|bits: 4\b|Loading .{0,20}4.?bit"),
    )
)
TRIED = tuple((name, re.compile(pattern.encode(), re.IGNORECASE)) for name, pattern in workarounds.SPELLINGS.items())
MOST = 40


def read(data: bytes, first_line: int, log: ParsedLog, *, ending: bool = False) -> None:
    """Note the facts in this chunk; of each kind the first few, as they do not change; at the end what was tried."""
    for kind, pattern in TRIED if ending else (*PATTERNS, *TRIED):
        counted, line = 0, first_line
        for found in pattern.finditer(data):
            if log.count(kind) >= MOST:
                break
            line += data.count(b"\n", counted, found.start())
            counted = found.start()
            words = [group for group in found.groups() if group] or [found[0]]
            log.message(kind, b" ".join(words).decode(errors="replace"), line)
