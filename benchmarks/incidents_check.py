"""What `finitune check` foresees: public incidents that were visible before training, and healthy configurations.

    python benchmarks/incidents_check.py [FILE]

Of the incidents in FILE, one JSON object a line (`incidents-dev.jsonl` unless given), whose
`detectable_before_training` is true, those count whose free-form config, model and hardware carry every fact that
decides their cause. A hit is a finding with an accepted cause.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from healthy_configs import HEALTHY

from finitune.chapter import causes
from finitune.facts import Facts
from finitune.finding import Finding
from finitune.preflight import check, foresee
from finitune.sources.cases.case import read

INCIDENTS = Path(__file__).parent / "incidents-dev.jsonl"
SAME = {"zero-config-error": "config-disagreement"}
"""What DESIGN 5.3 calls by another name than the taxonomy."""
DECISIVE = {
    # The settings that the chapter compares, all of them. A cause that is decided by weights, by data, by the order of
    # calls or by a self-test on the device (backend-kernel-numerics) has no line: no configuration carries that.
    "adam-eps-underflow-fp16": ("precision.parameters",),
    "benign-length-grouping": ("batching.group_by_length",),
    "bf16-emulated-hardware": ("precision.compute", "hardware"),
    "bf16-update-stagnation": ("precision.parameters",),
    "chat-template-mismatch": ("training.chat_template", "training.model_name"),
    "comm-overlap-race": ("versions.deepspeed", "parallel.zero_stage", "parallel.overlap_comm"),
    "cudnn-sdpa-bug": ("versions.torch", "hardware"),
    "deepspeed-version-regression": ("versions.deepspeed", "parallel.zero_stage"),
    "flash-attention-bug": ("versions.flash-attn", "attention"),
    "fp16-activation-overflow": ("precision.compute", "model.family"),
    "fp16-trainable-weights": ("precision.parameters", "precision.compute"),
    "fully-masked-attention-rows": ("precision.compute", "batching.padding_side"),
    "gradient-checkpointing": ("training.reentrant", "training.gradient_checkpointing"),
    "grad-accum-normalisation": ("versions.transformers", "optimizer.accumulation"),
    "label-smoothing-fp16-sum": ("training.label_smoothing", "precision.full_eval"),
    "logging-hides-nan": ("training.nan_filter",),
    "lora-scale-or-init": ("adapter.rank", "adapter.alpha", "optimizer.lr"),
    "low-precision-grad-reduce": ("precision.compute", "parallel.zero_stage", "optimizer.accumulation"),
    "lr-too-high": ("optimizer.lr",),
    "missing-gradient-clipping": ("optimizer.clip",),
    "missing-nonfinite-guard": ("precision.compute", "parallel.zero_stage", "versions.deepspeed"),
    "normal-scaler-warmup": ("precision.initial_scale",),
    "optimizer-8bit-bug": ("versions.bitsandbytes", "optimizer.name"),
    "packing-mask-leak": ("batching.packing", "attention"),
    "quant-compute-dtype": ("quantization",),
    "quant-kernel-hardware": ("quantization", "hardware"),
    "rl-group-std-zero": ("training.generations",),
    "rope-precision": ("precision.compute", "parallel", "batching.max_length", "versions.transformers"),
    "resized-embeddings-init": ("versions.transformers", "vocabulary.size", "parallel.zero_stage"),
    "tokenizer-vocab-mismatch": ("tokens", "model.vocabulary"),
    "vision-tower-fp16": ("precision.compute", "training.model_name"),
    "weight-tying-broken": ("model.tied", "adapter"),
    "zero-config-error": ("disagreements",),
}
"""Cause -> the facts without which nothing before a run can show it. Causes in weights and data need those files."""


def incidents(file: Path) -> Iterator[dict[str, Any]]:
    """Those that were visible before training. Raises ValueError that names the line of one that cannot be read."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            incident = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}: line {number}: not JSON ({error.msg})") from None
        if not isinstance(incident, dict) or (incident and not isinstance(incident.get("cause"), str)):
            raise ValueError(f"{file}: line {number}: expected an object with a cause")
        if str(incident.get("detectable_before_training", "")).lower().startswith("true"):
            yield incident


def carried(cause: str, facts: Facts) -> bool:
    """Whether every fact that decides this cause is known, whatever it says."""
    needed = DECISIVE.get(cause)
    return needed is not None and all(_known(facts, path) for path in needed)


def _known(facts: Facts, path: str) -> bool:
    group, _, field = path.partition(".")
    value: Any = getattr(facts, group)
    if isinstance(value, dict):
        return field in value
    return value is not None and (not field or getattr(value, field) is not None)


def foreseen(file: Path) -> tuple[Counter[str], list[str]]:
    """Counts of incidents: all, with a chapter, carrying the facts, with the right finding; and what was missed."""
    count: Counter[str] = Counter()
    missed: list[str] = []
    for incident in incidents(file):
        accepted = {incident["cause"], *incident.get("accept", ())}
        accepted |= {SAME[name] for name in accepted if name in SAME}
        facts = read(incident)
        found = any(finding.cause in accepted for finding in foresee(facts).findings)
        known = any(carried(cause, facts) for cause in accepted)
        count["detectable"] += 1
        count["chapter"] += any(c.function("foresee") is not None for name, c in causes().items() if name in accepted)
        count["carried"] += known
        count["found"] += found
        count["carried and found"] += known and found
        if known and not found:
            told = json.dumps(incident.get("config"))[:100]
            missed.append(f"{incident['cause']:28} {incident.get('source', ''):40} {told}")
    return count, missed


def healthy() -> list[tuple[str, Finding]]:
    found: list[tuple[str, Finding]] = []
    for name, files, card in HEALTHY:
        with tempfile.TemporaryDirectory() as directory:
            paths = [Path(directory, file) for file, _ in files]
            for path, (_, content) in zip(paths, files, strict=True):
                path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
            found += [(name, finding) for finding in check(*paths, gpu=card).findings]
    return found


def main() -> int:
    try:
        count, missed = foreseen(Path(sys.argv[1]) if len(sys.argv) > 1 else INCIDENTS)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    share = count["carried and found"] / max(1, count["carried"])
    print(
        f"incidents visible before training {count['detectable']}, with a chapter that foresees {count['chapter']}, "
        f"foreseen {count['found']}; their case carries every deciding fact: {count['carried']}, "
        f"of these foreseen {count['carried and found']} ({share:.0%})"
    )
    for line in missed:
        print("  not foreseen:", line)
    found = healthy()
    severities = Counter(finding.severity for _, finding in found)
    print(f"healthy configurations {len(HEALTHY)}: errors {severities['error']}, warnings {severities['warning']}")
    for name, finding in found:
        print(f"  {name}: {finding.severity} {finding.cause}: {finding.message}")
    return int(severities["error"] > 0 or severities["warning"] > 2)


if __name__ == "__main__":
    sys.exit(main())
