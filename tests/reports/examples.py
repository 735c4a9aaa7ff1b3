"""Hand-made results and recordings that the tests of the reports share."""

from __future__ import annotations

import math
from pathlib import Path

from finitune.facts import Facts, Hardware, Model, Optimizer, Precision
from finitune.finding import (  # fmt: skip
    CheckResult,
    Diagnosis,
    Evidence,
    Finding,
    Incident,
    NotChecked,
    Origin,
    RankedCause,
    Remedy,
    Where,
)
from finitune.recording import Recorder

ORIGIN = Origin(
    module="model.layers.7.mlp", op="aten.mul", phase="forward", dtype="float16", rows=[2, 5],
    positions=[0, 1, 2, 3], values="inf", padding=True,
)  # fmt: skip

OVERFLOW = RankedCause(
    cause="fp16-activation-overflow", confidence=0.97, proved=True, strength="proved", bits=9.4,
    evidence=[
        Evidence(text="occurs in 31 of 250 public incidents that the book knows", bits=-3.0),
        Evidence(text="experiment module-float32=model.layers.7.mlp: finite, as predicted", bits=8.0),
        Evidence(text="the origin is a forward operator in float16", bits=3.1),
        Evidence(text="placebo module-float32=model.layers.6.mlp: non-finite, as predicted", bits=1.6),
        Evidence(text="the learning rate had just changed", bits=-0.3),
    ],
    remedies=[
        Remedy(name="keep-modules-float32", safety="safe", command="finitune check runs/0815 --gpu x"),
        Remedy(name="use-bfloat16", safety="unsafe", patch={"bf16.enabled": True, "fp16.enabled": False}),
    ],
    proof=("module-float32=model.layers.7.mlp", "module-float32=model.layers.6.mlp"),
)  # fmt: skip

UNTRAINED = RankedCause(
    cause="untrained-token-embeddings", confidence=None, proved=False, bits=-4.2,
    evidence=[Evidence(text="replacing the rows did not make the step sound", bits=-4.2)], remedies=[],
    not_asked=("tokens",),
)  # fmt: skip

INCIDENT = Incident(
    step=31, rank=0, symptom="nonfinite-gradient", reproducible=True, origin=ORIGIN, causes=[OVERFLOW, UNTRAINED],
    action="skipped-step", last_good=30, message="gradients are not finite (2 of 291 tensors)",
)  # fmt: skip

DIAGNOSIS = Diagnosis(incidents=[INCIDENT], not_checked=[NotChecked(input="data", why="the recording names no file")])

CHECKED = CheckResult(
    findings=[
        Finding(
            cause="fp16-activation-overflow", severity="warning",
            message="the weights are bfloat16 and float16 is asked for",
            where=Where(file="ds_config.json", key="fp16.enabled"),
            remedy=Remedy(name="use-bfloat16", safety="unsafe", patch={"bf16.enabled": True}),
        ),
        Finding(
            cause="untrained-token-embeddings", severity="error",
            message="2 tokens that begin 512 of 512 sequences were never trained: rms 1e-08, median row 0.021",
            where=Where(file="models/yi", tensor="model.embed_tokens.weight", tokens=[6, 7]),
            remedy=Remedy(
                name="reinit-token-rows", safety="safe",
                command="finitune repair reinit-token-rows --model models/yi --tokens 6,7 --output models/yi-repaired",
            ),
        ),
        Finding(cause="all-labels-ignored", severity="info", message="3 rows of 900 have no target"),
    ],
    not_checked=[NotChecked(input="hardware", why="no --gpu given"), NotChecked(input="data", why="no --data given")],
    passed=["corrupt-checkpoint", "lr-too-high"],
)  # fmt: skip


def record(directory: Path, *, module: str = "model.layers.7.mlp", text: str = "gradients are not finite") -> Path:
    """A short run that fails at step 31: rows, one incident with origin, arms and layers, and a stop."""
    recorder = Recorder(directory)
    recorder.header(
        Facts(
            precision=Precision(compute="float16", scaler="dynamic", initial_scale=65536.0),
            optimizer=Optimizer(name="AdamW", lr=2e-5),
            hardware=Hardware(name="V100", bfloat16=False),
            model=Model(family="llama", path=module),
            versions={"torch": "2.13.0"},
        ),
        command=["python", text],
    )
    for step in range(1, 34):
        bad = step >= 31
        recorder.step(
            step, loss=math.nan if bad else 2.0 - step / 40, grad_norm=math.inf if bad else 1.0 + step % 3,
            loss_scale=65536.0 / 2 ** max(step - 31, 0), skipped=float(bad),
        )  # fmt: skip
    recorder.event("incident", step=31, id=1, symptom="nonfinite-gradient", text=text, action="skipped-step")
    layers = [{"module": f"{module}.{i}", "peak": 10.0**i, "nonfinite": int(i > 4)} for i in range(6)]
    layers.append({"module": module, "peak": math.inf, "nonfinite": 9})
    recorder.event(
        "origin", step=31, incident=1, repeats=True, passes=1, layers=layers,
        origin={"module": module, "op": "aten.mul", "phase": "forward", "dtype": "float16"},
    )  # fmt: skip
    for arm, expect, result, placebo in (
        (f"module-float32={module}", "finite", "finite", False),
        ("module-float32=model.layers.6.mlp", "non-finite", "non-finite", True),
        ("loss-scale-1", "finite", "non-finite", False),
    ):
        recorder.event(
            "arm", step=31, incident=1, arm=arm, cause="fp16-activation-overflow", expect=expect, result=result,
            placebo=placebo,
        )  # fmt: skip
    recorder.event("log", step=31, printed=0.0, true=math.nan)
    recorder.event("stop", step=33, incident=1, text=text, checkpoint="runs/x/last-good")
    recorder.close()
    return directory
