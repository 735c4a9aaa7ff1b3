"""What settings, files and symptoms say for each cause after a run, and what of another it may be taken for."""

from __future__ import annotations

from dataclasses import replace

from tests.causes.parts import A100, APPLE, BAD, BRAIN, HALF, V100, rows, scanned, series, tensor, use, zero
from tests.causes.rows import Table, exactly, less, nothing, over, under

from finitune.facts import (
    Adapter,
    Attention,
    Batching,
    Disagreement,
    Model,
    Optimizer,
    Precision,
    Quantization,
    Training,
    UnknownKey,
    Vocabulary,
    Weights,
)

LORA = Adapter(kind="lora")
PURE, WHOLE = Precision(compute="float16", parameters="float16", scaler="none"), Precision(parameters="bfloat16")
FLASH, SDPA = Attention(implementation="flash_attention_2"), Attention(implementation="sdpa")


def whole(nonfinite: int) -> Weights:
    return scanned(tensor(shape=(8, 8), peak=0.1, rms=0.02, nonfinite=nonfinite))


def vanishing(underflow: int) -> Weights:
    return scanned(tensor("a.up_proj.weight", shape=(100, 10), peak=1e-5, rms=1e-7, underflow=underflow))


SPIKE, CALM = series(1, 1, 1, 1, 1, 1, 1, 90), series(1, 1, 1, 1, 1, 1, 1, 1)
WATCHED, SGD = series(1, 1, 1, 1, 1, 1, 1, 900), {"optimizer": "SGD"}
LONG = series(*[1.0] * 20, 900.0)
SCALED = Precision(compute="float16", scaler="dynamic", initial_scale=65536.0, min_scale=1.0)
RACE = {"reduction": {"worst": 0.43, "repeats": True}}
EIGHT = Quantization(bits=8, kind="int8")
DTYPE = Disagreement(key="precision.compute", values=["bfloat16", "float16"], sources=["a", "b"])
REENTRANT = Training(gradient_checkpointing=True, reentrant=True)
ALPHA, USUAL = Adapter(kind="lora", rank=8, alpha=256), Adapter(kind="lora", rank=8, alpha=16)


CASES: Table = {
    "backend-kernel-numerics": (
        [over(0, hardware=APPLE, repeats=False)],
        [under(0, "A card on which everybody trains.", hardware=A100)],
    ),
    "benign-length-grouping": (
        [over(0, batching=Batching(group_by_length=True), symptoms=set())],
        [
            under(0, "A sawtooth is finite.", batching=Batching(group_by_length=True), symptoms=BAD),
            under(0, "Rows are not grouped.", batching=Batching(group_by_length=False), symptoms=set()),
        ],
    ),
    "bf16-emulated-hardware": (
        [over(0, precision=BRAIN, hardware=V100, symptoms=set())],
        [
            under(0, "A dtype that the card has.", precision=HALF, hardware=V100, symptoms=set()),
            less("Emulation is slow, not wrong.", precision=BRAIN, hardware=V100, symptoms=BAD),
        ],
    ),
    "bf16-update-stagnation": (
        [
            over(0, precision=WHOLE, optimizer=Optimizer(lr=1e-6), symptoms=set()),
            over(5, precision=WHOLE, optimizer=Optimizer(lr=1e-6), symptoms={"stagnation"}, moved=series(0.01)),
        ],
        [
            under(0, "Rounding stays finite.", precision=WHOLE, optimizer=Optimizer(lr=1e-6), symptoms=BAD),
            under(0, "A rate that moves every weight.", precision=WHOLE, optimizer=Optimizer(lr=1e-3), symptoms=set()),
        ],
    ),
    "chat-template-mismatch": (
        [nothing("a loss that is only high", training=Training(chat_template="alpaca"), symptoms=set())],
        [
            under(0, "A wrong template gives a high loss, not NaN.", training=Training(chat_template="alpaca"),
                  symptoms=BAD),
            nothing("No template was told of.", training=Training(), symptoms=BAD),
        ],
    ),
    "comm-overlap-race": (
        [
            over(5, parallel=zero(overlap_comm=True), versions={"deepspeed": "0.12.5"}, repeats=False),
            exactly(6,
                    incident=RACE),  # in any loop: what a rank computes repeats, what they averaged is something else
            over(11, parallel=zero(overlap_comm=True), repeats=False, incident=RACE),
        ],
        [
            under(0, "The step is bad each time.",
                  parallel=zero(overlap_comm=True), versions={"deepspeed": "0.12.5"}, repeats=True),
            under(0, "A stage that overlaps otherwise.",
                  parallel=zero(3, overlap_comm=True), versions={"deepspeed": "0.12.5"}, repeats=False),
            under(5, "What one rank computes does not repeat.",
                  incident={"reduction": {"worst": 0.43, "repeats": False}}),
            nothing("Nothing was compared.", incident={"reduction": None}),
        ],
    ),
    "config-disagreement": (
        [over(0, disagreements=[DTYPE], symptoms=BAD)],
        [
            under(0, "They disagree about a length.", disagreements=[replace(DTYPE, key="batching.max_length")],
                  symptoms=BAD),
            under(0, "All agree.", disagreements=[], symptoms=set()),
        ],
    ),
    "deepspeed-version-regression": (
        [
            over(0, parallel=parallel, precision=precision, versions={"deepspeed": version})
            for precision, parallel, version in (
                (BRAIN, zero(overlap_comm=True), "0.12.5"), (HALF, zero(1), "0.13.5"), (BRAIN, zero(0), "0.18.3"),
                (BRAIN, zero(1, grad_accum_dtype="fp32"), "0.18.9"))
        ],
        [
            under(0, "It fails on one process too.",
                  parallel=zero(), precision=BRAIN, versions={"deepspeed": "0.12.5"}, repeats=True),
            under(0, "A release without a defect on record.",
                  parallel=zero(), precision=BRAIN, versions={"deepspeed": "0.19.8"}),
        ],
    ),
    "fp16-trainable-weights": (
        [over(0, precision=PURE, symptoms=set())],
        [
            under(0, "Weights are float32.", precision=Precision(parameters="float32"), symptoms=BAD),
            less("It ends in an exception, not in NaN.", precision=PURE, symptoms=BAD),
        ],
    ),
    "fp16-underflow-in-weights": (
        [over(0, precision=HALF, weights=vanishing(600), symptoms=set())],
        [
            under(0, "No weight vanishes.", precision=HALF, weights=vanishing(0), symptoms=set()),
            under(0, "bfloat16 holds them.", precision=BRAIN, weights=vanishing(600), symptoms=set()),
            less("A zero is finite.", precision=HALF, weights=vanishing(600), symptoms=BAD),
        ],
    ),
    "grad-accum-normalisation": (
        [over(0, optimizer=Optimizer(accumulation=8), versions={"transformers": "4.47.0"}, symptoms=set())],
        [
            under(0, "A loss that is too large is finite.",
                  optimizer=Optimizer(accumulation=8), versions={"transformers": "4.47.0"}, symptoms=BAD),
            under(0, "One micro-step is not divided.",
                  optimizer=Optimizer(accumulation=1), versions={"transformers": "4.47.0"}, symptoms=set()),
        ],
    ),
    "gradient-checkpointing": (
        [over(0, training=REENTRANT, symptoms=set(), adapter=LORA)],
        [
            under(0, "Nothing is checkpointed.", training=Training(gradient_checkpointing=False), symptoms=set()),
            under(0, "A missing gradient is no NaN.", training=REENTRANT, symptoms=BAD, adapter=LORA),
            nothing("Nobody said so.", training=Training(), symptoms=set()),
        ],
    ),
    "logging-hides-nan": (
        [nothing("a log that was filtered", training=Training(nan_filter=True), symptoms=set())],
        [
            under(0, "The filter is off.", training=Training(nan_filter=False), symptoms=set()),
            under(0, "A filter makes no bad number.", training=Training(nan_filter=True), symptoms=BAD),
        ],
    ),
    "lora-scale-or-init": (
        [over(5, adapter=ALPHA, optimizer=Optimizer(lr=5e-4), loss=series(1, 2, 6))],
        [
            under(0, "The loss had not climbed.", adapter=ALPHA, optimizer=Optimizer(lr=5e-4), loss=series(2, 2, 2)),
            under(0, "A usual scale.", adapter=USUAL, optimizer=Optimizer(lr=2e-4), loss=series(1, 2, 6)),
            exactly(3, "A loss about zero does not climb.",
                    adapter=ALPHA, optimizer=Optimizer(lr=5e-4), loss=series(-0.1, 1e-6, 3e-3)),
        ],
    ),
    "low-precision-grad-reduce": (
        [nothing("rounding that nobody measured", precision=BRAIN, parallel=zero(), symptoms=set())],
        [
            under(0, "Added in float32.", precision=BRAIN, parallel=zero(grad_accum_dtype="float32"), symptoms=set()),
            under(0, "Rounding stays finite.", precision=BRAIN, parallel=zero(), symptoms=BAD),
        ],
    ),
    "missing-gradient-clipping": (
        [
            over(0, grad_norm=SPIKE, optimizer=Optimizer(clip=0.0)),
            over(6, grad_norm=WATCHED, incident=SGD),
            over(0, grad_norm=LONG, incident=SGD, clip_factor=series(*[1.0] * 21)),  # at infinity, to measure the norm
        ],
        [
            under(0, "No spike.", grad_norm=CALM, optimizer=Optimizer(clip=0.0)),
            under(0, "Each update multiplies the error.",
                  grad_norm=series(*[1.0] * 9, *(1.6**n for n in range(30))), incident=SGD),
            under(6.5, "Each update makes the next gradient larger again: more than one batch does.",
                  grad_norm=series(1, 1, 1, 1, 1, 9, 300, 1e6), loss=CALM, incident=SGD),
            under(0, "A spike that was clipped.", grad_norm=SPIKE, optimizer=Optimizer(clip=1.0)),
            under(0, "It was seen to be clipped.",
                  grad_norm=WATCHED, incident=SGD, clip_factor=series(1, 1, 1, 1, 1, 1, 1, 0.01)),
            under(0, "Clipped by value.", grad_norm=WATCHED, incident={**SGD, "clipped_by_value": True}),
            under(0, "Clipped at 1.", grad_norm=LONG, incident=SGD, clip_factor=series(*[1.0] * 20, 1 / 900)),
            nothing("Nobody watched.", grad_norm=WATCHED, incident={}),
        ],
    ),
    "missing-nonfinite-guard": (
        [over(0, precision=BRAIN, parallel=zero(), versions={"deepspeed": "0.16.9"}, symptoms=set())],
        [
            under(0, "It makes no bad number.",
                  precision=BRAIN, parallel=zero(), versions={"deepspeed": "0.16.9"}, symptoms=BAD),
            under(0, "The engine looks.",
                  precision=HALF, parallel=zero(), versions={"deepspeed": "0.16.9"}, symptoms=set()),
        ],
    ),
    "misspelt-setting": (
        [over(0, unknown_keys=[UnknownKey(file="a.json", key="bp16")], symptoms=set())],
        [
            under(0, "Every key is known.", unknown_keys=[], symptoms=set()),
            under(0, "It makes no bad number.", unknown_keys=[UnknownKey(file="a.json", key="bp16")], symptoms=BAD),
        ],
    ),
    "nan-saved-in-checkpoint": (
        [over(0, weights=whole(64))],
        [under(0, "One value is damaged.", weights=whole(1))],
    ),
    "optimizer-8bit-bug": (
        [
            over(0, optimizer=Optimizer(name=name), versions={"bitsandbytes": version})
            for version in ("0.36.0", "0.39.1", "0.41.0", "0.41.0.post2")
            for name in ("adamw_bnb_8bit", "paged_adamw_8bit", "AdamW8bit")
        ],
        [
            *(under(0, "Another release or optimizer.", optimizer=Optimizer(name=name),
                    versions={"bitsandbytes": version})
              for name, version in (
                  ("adamw_bnb_8bit", "0.35.0"), ("adamw_bnb_8bit", "0.41.1"), ("adamw_bnb_8bit", "0.48.2"),
                  ("adamw_torch", "0.39.0"), ("paged_adamw_32bit", "0.39.0"))),
            nothing("Not known.", optimizer=Optimizer(name="adamw_bnb_8bit"), versions={"torch": "2.6.0"}),
            nothing("Not known.", optimizer=Optimizer(), versions={"bitsandbytes": "0.39.0"}),
        ],
    ),
    "packing-mask-leak": (
        [nothing("documents that see one another", batching=Batching(packing=True), attention=SDPA, symptoms=set())],
        [
            under(0, "They leave every number finite.", batching=Batching(packing=True), attention=SDPA, symptoms=BAD),
            under(0, "The kernel is told.", batching=Batching(packing=True), attention=FLASH, symptoms=set()),
        ],
    ),
    "pad-eos-label-masking": (
        [over(0, vocabulary=Vocabulary(pad_id=2, eos_id=2), symptoms=set())],
        [
            under(0, "Every number is healthy.", vocabulary=Vocabulary(pad_id=2, eos_id=2), symptoms=BAD),
            under(0, "Two tokens.", vocabulary=Vocabulary(pad_id=0, eos_id=2), symptoms=set()),
        ],
    ),
    "precision-request-ignored": (
        [nothing("float32 in its place", precision=replace(SCALED, cpu=True), symptoms=set())],
        [
            under(0, "float32 makes no bad number.", precision=replace(SCALED, cpu=True), symptoms=BAD),
            under(0, "It is granted.", precision=replace(SCALED, cpu=False), symptoms=set()),
        ],
    ),
    "quant-kernel-hardware": (
        [over(0, quantization=EIGHT, hardware=V100)],
        [under(0, "A card with such units.", quantization=EIGHT, hardware=A100)],
    ),
    "resized-embeddings-init": (
        [over(0, versions={"transformers": "4.31.0"}, parallel=zero(3))],
        [under(0, "A release that resizes alike.", versions={"transformers": "5.23.0"}, parallel=zero(3))],
    ),
    "rope-precision": (
        [nothing("positions that coincide", precision=BRAIN, symptoms=set())],
        [
            under(0, "They leave every number finite.", precision=BRAIN, symptoms=BAD),
            under(0, "Positions in float32.", precision=Precision(compute="float32"), symptoms=set()),
        ],
    ),
    "tokenizer-vocab-mismatch": (
        [over(0, tokens=use({3: 1, 32002: 1}), model=Model(vocabulary=32000))],
        [under(0, "Every id has a row.", tokens=use({3: 1, 5: 1}), model=Model(vocabulary=10))],
    ),
    "untrained-output-rows": (
        [nothing("a logit near 0", tokens=use({}, {3: 1}), head_rows=rows({3: 0.0}), symptoms=set())],
        [
            under(0, "Sound rows.", tokens=use({}, {3: 1}), head_rows=rows({}), symptoms=set()),
            under(0, "It is finite.", tokens=use({}, {3: 1}), head_rows=rows({3: 0.0}), symptoms=BAD),
        ],
    ),
    "weight-tying-broken": (
        [nothing("matrices that drift apart", model=Model(tied=True), symptoms=set())],
        [
            under(0, "They stay finite.", model=Model(tied=True), symptoms=BAD),
            under(0, "They were never tied.", model=Model(tied=False), symptoms=set()),
        ],
    ),
    "zero-config-error": (
        [over(0, parallel=zero(communication_dtype="fp16"), precision=BRAIN)],
        [
            under(0, "It fails on one process too.", parallel=zero(communication_dtype="fp16"), precision=BRAIN,
                  repeats=True),
            under(0, "As wide as the gradients.", parallel=zero(communication_dtype="bf16"), precision=BRAIN),
            nothing("Nobody said so.", parallel=zero(), precision=BRAIN),
        ],
    ),
}  # fmt: skip
