"""Messages of trainers and of PyTorch that say something about the cause.

Each row is an observation, the symptom that it is by itself ("" where a healthy run prints it too), and how a line
shows it. People quote messages, so the same expressions are sought in what somebody writes.
"""

from __future__ import annotations

import re

from finitune.sources.logs.parsed_log import ParsedLog

KNOWN: tuple[tuple[str, str, bytes], ...] = (
    ("probability-tensor", "nonfinite-logits", rb"probability tensor contains"),
    ("token-zero-output", "nonfinite-logits", rb"[:>'\"\]]\s?!{16,}['\"]?\s*$"),
    ("unscale-fp16-gradients", "refused", rb"Attempting to unscale FP16 gradients"),
    ("no-inf-checks", "zero-gradient", rb"No inf checks were recorded for this optimizer"),
    (
        "token-out-of-range",
        "index-out-of-range",
        rb"srcIndex < srcSelectDimSize|index out of (?:bounds|range)|indexSelect|vectorized_gather",
    ),
    ("target-out-of-range", "index-out-of-range", rb"`?t >= 0 && t < n_classes|Target -?\d+ is out of bounds"),
    ("device-side-assert", "device-assert", rb"device-side assert|cudaErrorAssert"),
    ("ecc-error", "hardware-error", rb"uncorrectable ECC error|NVRM: Xid|fallen off the bus"),
    ("illegal-access", "illegal-access", rb"illegal memory access|misaligned address"),
    ("cudnn-attention", "", rb"cuDNN SDPA backward got grad_output"),
    ("cudnn-error", "", rb"CUDNN_STATUS_\w+"),
    (
        "nonfinite-parameter",
        "nonfinite-weights",
        rb"Found NaN or inf values in parameter|NaN or inf tensors found in the model",
    ),
    (
        "stopped-by-nan",
        "nonfinite-loss",
        rb"oss is (?:nan|inf),? {0,9}[sS]topping|NaN loss encountered|Training diverged|finitune: step \d+: loss is",
    ),
    (
        "nonfinite-gradient-check",
        "nonfinite-gradient",
        rb"NaN in local grad norm|non-finite (?:gradient )?norm|error_if_nonfinite|step \d+: .{6,13} not finite",
    ),
    (
        "tensors-named-nan",
        "nonfinite-weights",
        rb"(?:keys|tensors?|weights|parameters|state_dict|checkpoint)\b.{0,60}\bcontains? (?:NaN|nan|[Ii]nf)",
    ),
    ("scale-zero", "loss-scale-collapse", rb"(?:[Gg]rad|[Ll]oss)[ _][Ss]cale\W{1,4}0(?:\.0{1,9})?(?![\w.])"),
    ("untrained-tokens", "refused", rb"Untrained tokens .{0,80}found"),
    ("tokenization-mismatch", "rows-ignored", rb"tokenization mismatch"),
    (
        "no-supervised-token",
        "rows-ignored",
        rb"[Aa]ll labels .{0,40}-100|response template .{0,80}not find|Could not find response key",
    ),
    ("no-sample-left", "rows-ignored", rb"not to be a single sample in your epoch_iterator"),
    ("loader-without-length", "", rb"positive value if dataloader does not have a length"),
    ("rows-dropped", "", rb"Dropping fully masked examples"),
    ("std-of-one", "nonfinite-loss", rb"std\(\): degrees of freedom is <= 0"),
    ("checkpoint-without-gradient", "zero-gradient", rb"None of the inputs have requires_grad"),
    ("no-gradient-path", "refused", rb"does not require grad and does not have a grad_fn"),
    ("engine-config-mismatch", "refused", rb"correct the following DeepSpeed config values|fp16_backend\(amp\)="),
    ("anomaly", "nonfinite-gradient", rb"Function '\w{1,80}' returned nan values in its \d+th output"),
    ("empty-target", "", rb"Target sequences include empty"),
    ("newly-initialised", "", rb"newly initialized"),
    (
        "nonfinite-evaluation",
        "nonfinite-evaluation",
        rb"(?:eval(?:uation)?|valid(?:ation)?|val|test)[_ /]?loss['\"]?\s{0,9}[:=]?\s{0,9}['\"]?(?:nan|NaN)\b",
    ),
)
SYMPTOMS = {
    **{kind: symptom for kind, symptom, _ in KNOWN if symptom}, "scale-at-minimum": "loss-scale-collapse",
    "crash": "crash",
}  # fmt: skip
"""Messages that are an incident by themselves, and its symptom; `deepspeed` and `endings` read the last two."""
BESIDE = ("scale-zero", "stopped-by-nan", "nonfinite-evaluation", "nonfinite-parameter", "rows-dropped")
"""These may share a line with a progress bar."""
WORDS = (
    b"obability tensor", b"!!!!!!!!", b"unscale FP16", b"inf checks", b"srcIndex", b"index out of", b"indexSelect",
    b"vectorized_gather", b"n_classes", b"out of bounds", b"ssert", b"ECC error", b"NVRM", b"off the bus",
    b"memory access", b"misaligned", b"SDPA backward", b"CUDNN_STATUS", b"nan", b"NaN", b"inf", b"diverged",
    b"finitune: step", b"non-finite", b"ntrained tokens", b"mismatch", b"-100", b"esponse ", b"single sample",
    b"have a length", b"fully masked", b"degrees of freedom", b"requires_grad", b"require grad", b"config values",
    b"fp16_backend", b"include empty", b"newly init", b"contain", b"cale",
)  # fmt: skip
"""Every known message holds one of them; most lines hold none."""
_EACH = tuple((kind, re.compile(pattern)) for kind, _, pattern in KNOWN)
_MARGIN = 160
_QUOTED_END = re.compile(r"['\"]\)?$")
"""Of the line of code that raises it, which a traceback shows."""


def read(text: bytes, line: int, log: ParsedLog) -> None:
    """Note every known message in `text`, cut to its surroundings."""
    if any(text.find(word) >= 0 for word in WORDS):
        for kind, pattern in _EACH:
            _note(kind, pattern, text, line, log)


def read_beside(text: bytes, line: int, log: ParsedLog) -> None:
    """The few messages that a progress bar runs into."""
    for kind, pattern in _EACH:
        if kind in BESIDE:
            _note(kind, pattern, text, line, log)


def kinds_in(text: str) -> list[str]:
    """The kinds of message that a text quotes."""
    quoted = text.encode(errors="replace")
    return [kind for kind, pattern in _EACH if pattern.search(quoted)]


def _note(kind: str, pattern: re.Pattern[bytes], text: bytes, line: int, log: ParsedLog) -> None:
    """From the message to the end of its line, no more than is kept."""
    if found := pattern.search(text):
        excerpt = text[found.start() : found.end() + _MARGIN].decode(errors="replace").strip()
        log.message(kind, _QUOTED_END.sub("", excerpt), line)
