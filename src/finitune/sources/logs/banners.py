"""What programs print about themselves before the first step: versions, dtype, card, engine settings -> facts."""

from __future__ import annotations

import re

from finitune.sources.logs.reading import Notes

_PACKAGE = (
    rb"(deepspeed|transformers|torch|pytorch|peft|trl|accelerate|bitsandbytes|flash[-_]attn|unsloth|lightning|ludwig)"
)
PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("version", re.compile(rb"(?im)(?<![\w/.-])" + _PACKAGE + rb"(?:[_ ]version)?['\"]?\s?(?:==|=|:|\xe2\x94\x82| v?(?=\d+\.\d))\s?['\"v]{0,2}(\d+\.\d+[\w.+]{0,20})")),
    ("version", re.compile(rb"(DeepSpeed) info: version=(\d+\.\d+[\w.]{0,20})")),
    ("version", re.compile(rb"(Unsloth):? (\d{4}\.\d+[\w.]{0,10})")),
    ("float16", re.compile(rb"(?m)(?<![\w])fp16(?:_enabled)?(?:=True|'?\"?: ?True| True\b| \.{3,}.{0,4} True)|(?<!b)float16_enabled \.{3,}.{0,4} True"
                           rb"|compute dtype: torch\.float16|Using 16bit (?:Automatic|native)|--fp16\b(?! ?=?\s?[Ff]alse)")),
    ("bfloat16", re.compile(rb"(?m)(?<![\w])bf16(?:_enabled)?(?:=True|'?\"?: ?True| True\b| \.{3,}.{0,4} True)|bfloat16_enabled \.{3,}.{0,4} True"
                            rb"|compute dtype: torch\.bfloat16|Using bfloat16 Automatic|--bf16\b(?! ?=?\s?[Ff]alse)")),
    ("card", re.compile(rb"(?:NVIDIA |Tesla |GPU: )(V100|T4|P100|A100|A10G?|H100|H200|H800|A800|L4|L40S?|RTX A?\d{4}(?: Ti)?|GeForce RTX \d{4}(?: Ti)?)\b")),
    ("zero-stage", re.compile(rb"zero_optimization_stage \.{3,} (\d)|['\"]?stage['\"]?: ?(\d)\b|Creating torch\.\w+ ZeRO stage (\d)")),
    ("overlap", re.compile(rb"['\"]?overlap_comm['\"]?(?:=|: ?)([Tt]rue|[Ff]alse)")),
    ("deepspeed", re.compile(rb"\[deepspeed\]|DeepSpeed info:|\[(?:stage_1_and_2|stage3|logging|loss_scaler|engine)\.py:\d+:")),
    ("packing", re.compile(rb"(?<!\w)packing(?:=| )(True|False)")),
    ("8-bit", re.compile(rb"load_in_8bit(?:=|'?\"?: ?| )True")),
    ("4-bit", re.compile(rb"load_in_4bit(?:=|'?\"?: ?| )True|bits: 4\b|Loading .{0,20}4.?bit")),
)  # fmt: skip
MOST = 40


def read(data: bytes, first_line: int, notes: Notes) -> None:
    """Note the facts in this chunk; of each kind the first few, as they do not change."""
    for kind, pattern in PATTERNS:
        counted, line = 0, first_line
        for found in pattern.finditer(data):
            if notes.count(kind) >= MOST:
                break
            line += data.count(b"\n", counted, found.start())
            counted = found.start()
            words = [group for group in found.groups() if group] or [found[0]]
            notes.say(kind, b" ".join(words).decode(errors="replace"), line)
