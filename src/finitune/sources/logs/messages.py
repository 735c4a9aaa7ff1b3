"""Messages of trainers and of PyTorch that say something about the cause; each row one error text and its name."""

from __future__ import annotations

import re

from finitune.sources.logs.parsed_log import ParsedLog

KNOWN: tuple[tuple[str, bytes], ...] = (
    ("probability-tensor", rb"probability tensor contains either"),
    ("token-zero-output", rb"[:>'\"\]]\s?!{16,}['\"]?\s*$"),
    ("unscale-fp16-gradients", rb"Attempting to unscale FP16 gradients"),
    ("no-inf-checks", rb"No inf checks were recorded for this optimizer"),
    ("token-out-of-range", rb"srcIndex < srcSelectDimSize|index out of bounds|index out of range in self"),
    ("target-out-of-range", rb"`?t >= 0 && t < n_classes|Target -?\d+ is out of bounds"),
    ("device-side-assert", rb"device-side assert triggered"),
    ("ecc-error", rb"uncorrectable ECC error"),
    ("illegal-access", rb"illegal memory access"),
    ("cudnn-attention", rb"cuDNN SDPA backward got grad_output"),
    ("cudnn-error", rb"CUDNN_STATUS_\w+"),
    ("nonfinite-parameter", rb"Found NaN or inf values in parameter|NaN or inf tensors found in the model"),
    ("stopped-by-nan", rb"[Ll]oss is (?:nan|inf),? {0,9}(?:stopping|Stopping)|NaN loss encountered|Training diverged"),
    ("stopped-by-nan", rb"finitune: step \d{1,9}: loss is (?:nan|-?inf)"),
    ("nonfinite-gradient-check", rb"found NaN in local grad norm|non-finite (?:gradient )?norm|error_if_nonfinite"),
    ("nonfinite-gradient-check", rb"finitune: step \d{1,9}: (?:gradients are|the update is) not finite"),
    ("untrained-tokens", rb"Untrained tokens .{0,80}found"),
    ("tokenization-mismatch", rb"tokenization mismatch"),
    (
        "no-supervised-token",
        rb"[Aa]ll labels .{0,40}-100|response template .{0,80}not find|Could not find response key",
    ),
    ("no-sample-left", rb"not to be a single sample in your epoch_iterator"),
    ("rows-dropped", rb"Dropping fully masked examples"),
    ("loader-without-length", rb"positive value if dataloader does not have a length"),
    ("std-of-one", rb"std\(\): degrees of freedom is <= 0"),
    ("checkpoint-without-gradient", rb"None of the inputs have requires_grad"),
    ("no-gradient-path", rb"does not require grad and does not have a grad_fn"),
    ("engine-config-mismatch", rb"correct the following DeepSpeed config values|fp16_backend\(amp\)="),
    ("anomaly", rb"Function '\w{1,80}' returned nan values in its \d+th output"),
    ("empty-target", rb"Target sequences include empty"),
    (
        "eval-loss-nan",
        rb"(?:eval(?:uation)?|valid(?:ation)?|val|test)[_ /]?loss['\"]?\s{0,9}[:=]?\s{0,9}['\"]?(?:nan|NaN)\b",
    ),
)
"""Kind -> pattern. What a kind speaks for is said where causes are weighed."""
BESIDE = ("stopped-by-nan", "eval-loss-nan", "nonfinite-parameter", "rows-dropped")
"""These may share a line with a progress bar."""
WORDS_BESIDE = (b"nan", b"NaN", b"fully masked")
"""Each of those holds one of them."""
WORDS = (
    b"obability", b"scale", b"inf ", b"ndex", b"arget", b"n_classes", b"assert", b"ECC", b"illegal", b"SDPA", b"CUDNN",
    b"NaN", b"nan", b"ntrained", b"tokeniz", b"labels", b"response", b"std()", b"requires_grad", b"require grad",
    b"DeepSpeed config", b"fp16_backend", b"diverged", b"norm", b"error_if", b"!!!!!!!!",
    b"single sample", b"fully masked", b"have a length", b"finitune: ",
)  # fmt: skip
"""Every known message holds one of them; most lines hold none."""
_EACH = tuple((kind, re.compile(pattern)) for kind, pattern in KNOWN)
_MARGIN = 160


def read(text: bytes, line: int, log: ParsedLog) -> None:
    """Note every known message in `text`, cut to its surroundings."""
    if not any(word in text for word in WORDS):
        return
    for kind, pattern in _EACH:
        found = pattern.search(text)
        if found:
            log.message(kind, _excerpt(text, found.start(), found.end()), line)


def read_beside(text: bytes, line: int, log: ParsedLog) -> None:
    """The few messages that a progress bar runs into."""
    for kind, pattern in _EACH:
        if kind in BESIDE and (found := pattern.search(text)):
            log.message(kind, _excerpt(text, found.start(), found.end()), line)


def _excerpt(text: bytes, begin: int, end: int) -> str:
    """From the message to the end of its line, no more than is kept."""
    return text[begin : min(len(text), end + _MARGIN)].decode(errors="replace").strip()
