"""What is foreseen from releases, cards and engines: where each cause fires, and what it may be taken for."""

from tests.causes.parts import A100, APPLE, BRAIN, H100, HALF, V100, use, zero
from tests.causes.rows import Foreseen, fires, quiet, resembles, told

from finitune.facts import (
    Adapter,
    Attention,
    Batching,
    Hardware,
    Model,
    Optimizer,
    Parallel,
    Precision,
    Quantization,
    Training,
    Vocabulary,
)

DDP, FSDP = Parallel(kind="ddp"), Parallel(kind="fsdp")
LORA = Adapter(kind="lora")
TRAINER = Training(framework="transformers")

SDPA, EAGER = Attention(implementation="sdpa", source="a.yaml"), Attention(implementation="eager")
FLASH, XFORMERS = Attention(implementation="flash_attention_2"), Attention(implementation="xformers")
GEMMA, LLAMA = Model(family="gemma2"), Model(family="llama", rope_theta=1e4)
BY_NAME, RTX = Training(model_name="google/gemma-2-9b-it"), Hardware(name="RTX 3090", bfloat16=True)
REENTRANT = Training(gradient_checkpointing=True, reentrant=True, source="args.json")
WHOLE, SMOOTH = Precision(compute="float16", full_eval="float16"), Training(label_smoothing=0.1, source="args.json")
FOUR = Quantization(bits=4, compute_dtype="float16", compute_dtype_is_default=True, source="l.yaml: quantization")
EIGHT = Quantization(bits=8, kind="int8", source="a.json: load_in_8bit")
GROWN, OLD = Vocabulary(size=32003, source="m/tokenizer.json"), {"transformers": "4.31.0"}
ADDED = Training(added_tokens=["<tool>"])
SAME = Vocabulary(pad_id=2, eos_id=2, source="m/tokenizer_config.json")
ENDS = {
    "tokens": use({2: 7, 5: 7}, sequences=7), "vocabulary": SAME, "training": TRAINER, "versions": {"trl": "0.11.4"}
}  # fmt: skip


def deepspeed(version: str) -> dict[str, str]:
    return {"deepspeed": version}


def transformers(version: str) -> dict[str, str]:
    return {"transformers": version}


CASES: Foreseen = {
    "backend-kernel-numerics": (
        [fires("info", name, hardware=Hardware(name=name, bfloat16=True)) for name in ("Apple MPS", "AMD ROCm")],
        [
            resembles("A card of AMD too, but of a data centre, where large models are trained every day.",
                      hardware=Hardware(name="MI300X", bfloat16=True)),
            *(quiet(hardware=Hardware(name=name, bfloat16=True)) for name in ("A100", "V100", "RTX 4090")),
        ],
    ),
    "bf16-emulated-hardware": (
        [fires("warning", "V100", at="a.json: bf16", hardware=V100,
               precision=Precision(compute="bfloat16", source="a.json: bf16"))],
        [
            resembles("bfloat16 on a card that has it.", precision=BRAIN, hardware=A100),
            resembles("An old card in float16, which it has.", precision=HALF, hardware=V100),
            quiet("no dtype told", precision=Precision(), hardware=V100),
            quiet("the card is not used", precision=Precision(compute="bfloat16", cpu=True), hardware=V100),
        ],
    ),
    "comm-overlap-race": (
        [
            *(fires("error", version, at="ds.json: zero_optimization.overlap_comm", precision=BRAIN,
                    parallel=zero(stage, overlap_comm=True), versions=deepspeed(version))
              for version in ("0.12.4", "0.12.5", "0.14.0", "0.14.2", "0.14.2+cu121") for stage in (1, 2)),
            *(fires(severity, precision=BRAIN, parallel=zero(overlap_comm=True, **more), versions=deepspeed("0.16.4"))
              for more,
              severity in (({}, "info"), ({"reduce_bucket_size": 50_000_000}, "warning"), ({"nodes": 4}, "warning"))),
        ],
        [
            resembles("The release of the race, whose engine waits for each reduction.",
                      precision=BRAIN, parallel=zero(overlap_comm=False), versions=deepspeed("0.12.5")),
            *(quiet(precision=BRAIN, parallel=parallel, versions=deepspeed(version)) for parallel, version in (
                (zero(3, overlap_comm=True), "0.12.5"), (zero(), "0.12.5"), (zero(overlap_comm=True), "0.17.5"),
                (zero(overlap_comm=True), "0.19.8"), (DDP, "0.12.5"),
            )),
            quiet("no version", precision=BRAIN, parallel=zero(overlap_comm=True)),
        ],
    ),
    "cudnn-sdpa-bug": (
        [
            *(fires("warning", evidence={"fixed_in": "2.5.1"}, hardware=Hardware(name=card, bfloat16=True),
                    versions={"torch": "2.5.0+cu124"}, attention=attention)
              for attention in (None, SDPA) for card in ("H100", "NVIDIA H100 80GB HBM3", "GH200", "H20")),
            fires("info", hardware=H100, versions={"torch": "2.13.0"}, attention=SDPA,
                  batching=Batching(max_length=1088)),
        ],
        [
            resembles("The release of the bug on a card on which it does not choose cuDNN.",
                      hardware=A100, versions={"torch": "2.5.0"}, attention=SDPA),
            *(quiet(hardware=H100, versions={"torch": version}, attention=attention, batching=batching)
              for version, attention, batching in (
                  ("2.5.1", None, None), ("2.4.1", None, None), ("2.13.0", None, None), ("2.13.0", SDPA, None),
                  ("2.13.0", SDPA, Batching(max_length=1024)), ("2.5.0", FLASH, None), ("2.5.0", EAGER, None))),
            quiet(hardware=A100, versions={"torch": "2.5.0"}),
        ],
    ),
    "deepspeed-version-regression": (
        [
            *(fires(severity, where={"file": "ds.json"}, evidence={"fixed_in": fixed_in}, precision=precision,
                    parallel=parallel, versions=deepspeed(version))
              for precision, parallel, version, severity, fixed_in in (
                  (BRAIN, zero(overlap_comm=True), "0.12.5", "error", "0.14.3"),
                  (HALF, zero(1), "0.13.5", "warning", "0.14.3"), (BRAIN, zero(0), "0.18.3", "warning", "0.18.6"),
                  (BRAIN, zero(1, grad_accum_dtype="fp32"), "0.18.9", "warning", "0.19.0"))),
        ],
        [
            resembles("A release on record in a stage without those buckets.",
                      precision=BRAIN, parallel=zero(3), versions=deepspeed("0.12.5")),
            resembles("A release on record without the reduction that is wrong in it.", precision=BRAIN,
                      parallel=zero(multi_rank_bucket_allreduce=False), versions=deepspeed("0.12.5")),
            *(quiet(precision=precision, parallel=parallel, versions=deepspeed(version))
              for precision, parallel, version in (
                  (BRAIN, zero(), "0.12.3"), (BRAIN, zero(), "0.14.3"), (HALF, zero(0), "0.18.3"),
                  (BRAIN, zero(1), "0.18.9"), (BRAIN, zero(), "0.19.8"), (BRAIN, FSDP, "0.12.5"))),
        ],
    ),
    "flash-attention-bug": (
        [
            *(fires(severity, fixed_in, evidence={"fixed_in": fixed_in}, attention=attention, versions=versions, **more)
              for versions, attention, more, severity, fixed_in in (
                  ({"flash-attn": "2.6.1"}, FLASH, told(model=GEMMA), "error", "2.6.2"),
                  ({"flash-attn": "2.6.0"}, FLASH, told(training=BY_NAME), "error", "2.6.2"),
                  ({"flash-attn": "2.5.8"}, FLASH, told(model=GEMMA), "warning", "2.6.3"),
                  ({"flash-attn": "2.0.4"}, FLASH, told(model=LLAMA), "info", "2.1.0"),
                  ({"xformers": "0.0.16"}, XFORMERS, told(hardware=RTX), "warning", "0.0.17"))),
        ],
        [
            resembles("The release of the bug in a model without a cap on its scores.", hardware=A100,
                      attention=FLASH, versions={"flash-attn": "2.6.1"}, model=Model(family="gemma3"),
                      training=TRAINER),
            resembles("The release of the bug on a card of another compute capability.", hardware=A100,
                      attention=XFORMERS, versions={"xformers": "0.0.16"}),
            *(quiet(attention=attention, versions=versions, model=model) for versions, attention, model in (
                ({"flash-attn": "2.6.3"}, FLASH, GEMMA), ({"flash-attn": "2.6.1"}, FLASH, Model(family="llama")),
                ({"flash-attn": "2.6.1"}, EAGER, GEMMA), ({"flash-attn": "2.6.1"}, FLASH, Model(family="gemma3")),
                ({}, FLASH, GEMMA), ({"xformers": "0.0.20"}, XFORMERS, None),
            )),
        ],
    ),
    "grad-accum-normalisation": (
        [
            *(fires(severity, where={"key": "gradient_accumulation_steps"}, evidence={"accumulation": 8},
                    optimizer=Optimizer(accumulation=8, source="a.yaml"), versions=transformers(version))
              for version, severity in (
                  ("4.46.0", "warning"), ("4.47.1", "warning"), ("4.48.2", "warning"), ("4.49.0", "info"),
                  ("4.50.3", "info"))),
        ],
        [
            resembles("A release on record, of which one micro-step is never divided.",
                      optimizer=Optimizer(accumulation=1), versions=transformers("4.47.0")),
            *(quiet(optimizer=Optimizer(accumulation=steps), versions=transformers(version))
              for steps, version in ((8, "4.45.2"), (8, "4.51.0"), (8, "5.23.0"), (None, "4.47.0"))),
        ],
    ),
    "gradient-checkpointing": (
        [
            *(fires(severity, training=REENTRANT, adapter=adapter, hardware=hardware)
              for adapter, hardware,
              severity in ((LORA, None, "info"), (None, APPLE, "warning"), (LORA, APPLE, "warning"))),
        ],
        [
            resembles("The same checkpoints below an adapter, but not re-entrant.", adapter=LORA, hardware=A100,
                      training=Training(gradient_checkpointing=True, reentrant=False)),
            quiet("of whom nothing is known", training=REENTRANT),
            quiet("nothing is frozen below", training=REENTRANT, adapter=Adapter(kind="none")),
            *(quiet(training=one, adapter=LORA) for one in (
                Training(gradient_checkpointing=True), Training(reentrant=True))),
        ],
    ),
    "label-smoothing-fp16-sum": (
        [
            *(fires("warning", where={"key": "label_smoothing_factor"}, precision=WHOLE, training=SMOOTH, versions=one)
              for one in (None, transformers("4.4.2"))),
            fires("warning", precision=HALF, training=SMOOTH, parallel=Parallel(kind="deepspeed")),
        ],
        [
            resembles("Autocast sums in float32, whatever the products are.",
                      precision=HALF, training=SMOOTH, parallel=Parallel(kind="none")),
            resembles("A release that sums in float32.",
                      precision=WHOLE, training=SMOOTH, versions=transformers("4.57.0"), parallel=DDP),
            quiet("nothing is smoothed", precision=WHOLE, training=Training()),
            quiet("nothing is smoothed", precision=WHOLE, training=Training(label_smoothing=0.0)),
            quiet(precision=WHOLE, training=SMOOTH, versions=transformers("4.57.0")),
            quiet(precision=HALF, training=SMOOTH),
            quiet(precision=Precision(compute="bfloat16", full_eval="bfloat16"), training=SMOOTH),
        ],
    ),
    "low-precision-grad-reduce": (
        [
            *(fires(severity, patch={key: "fp32"}, precision=BRAIN, parallel=zero(**more),
                    optimizer=Optimizer(accumulation=steps))
              for more, steps, severity, key in (
                  (told(), 64, "info", "data_types.grad_accum_dtype"),
                  (told(grad_accum_dtype="bfloat16"), 256, "warning", "data_types.grad_accum_dtype"),
                  (told(communication_dtype="bfloat16", world=256), 1, "warning", "communication_data_type"))),
        ],
        [
            resembles("As many addends, and they are added in float32.",
                      precision=BRAIN, parallel=zero(grad_accum_dtype="float32"),
                      optimizer=Optimizer(accumulation=256)),
            *(quiet(precision=precision, parallel=parallel, optimizer=Optimizer(accumulation=steps))
              for precision, parallel, steps in (
                  (BRAIN, zero(), 16), (BRAIN, zero(world=256), 1), (HALF, zero(), 256), (BRAIN, FSDP, 256),
                  (BRAIN, zero(0), 256))),
        ],
    ),
    "missing-nonfinite-guard": (
        [
            *(fires(severity, where={"key": "bf16.check_grad_overflow"}, precision=BRAIN,
                    parallel=zero(stage, check_grad_overflow=check), versions=deepspeed(version))
              for stage, check, version, severity in (
                  (2, None, "0.16.9", "info"), (1, None, "0.19.2", "info"), (3, None, "0.19.7", "info"),
                  (2, False, "0.19.8", "warning"), (3, True, "0.18.9", "info"), (2, True, "0.16.9", "info"))),
        ],
        [
            resembles("The same engine in float16 checks for its scale.",
                      precision=HALF, parallel=zero(), versions=deepspeed("0.16.9")),
            *(quiet(precision=BRAIN, parallel=zero(stage, check_grad_overflow=check), versions=deepspeed(version))
              for stage, check, version in (
                  (2, None, "0.19.3"), (3, None, "0.19.8"), (2, True, "0.17.6"), (0, None, "0.16.9"),
                  (3, False, "0.19.8"))),
        ],
    ),
    "optimizer-8bit-bug": (
        [
            fires("warning", evidence={"fixed_in": "0.41.1"}, optimizer=Optimizer(name=name, source="a.json"),
                  versions={"bitsandbytes": version})
            for version in ("0.36.0", "0.39.1", "0.41.0", "0.41.0.post2")
            for name in ("adamw_bnb_8bit", "paged_adamw_8bit", "AdamW8bit")
        ],
        [
            resembles("The same package and a state of 32 bits.",
                      optimizer=Optimizer(name="paged_adamw_32bit"), versions={"bitsandbytes": "0.39.0"}),
            *(quiet(optimizer=Optimizer(name=name), versions={"bitsandbytes": version}) for name, version in (
                ("adamw_bnb_8bit", "0.35.0"), ("adamw_bnb_8bit", "0.41.1"), ("adamw_bnb_8bit", "0.48.2"),
                ("adamw_torch", "0.39.0"), (None, "0.39.0"),
            )),
            quiet("not installed", optimizer=Optimizer(name="adamw_bnb_8bit"), versions={"torch": "2.6.0"}),
        ],
    ),
    "pad-eos-label-masking": (
        [fires("warning", where={"tokens": [2]}, evidence={"end_tokens": 7}, **ENDS)],
        [
            resembles("Padding and end are one token, and this release knows where padding begins.",
                      **{**ENDS, "versions": {"trl": "1.16.0"}, "batching": Batching()}),
            *(quiet(**{**ENDS, **other}) for other in (
                {"vocabulary": Vocabulary(pad_id=0, eos_id=2)}, {"tokens": use({4: 7, 5: 7}, sequences=7)},
                {"versions": {"trl": "1.16.0"}}, {"training": Training(framework="llama-factory")}, {"versions": None},
                {"batching": Batching(packing=True)}, {"batching": Batching(pad_token="<pad>")},
            )),
        ],
    ),
    "quant-compute-dtype": (
        [
            *(fires(severity, at="l.yaml: quantization", quantization=FOUR, model=model, precision=precision)
              for model, precision, severity in (
                  (Model(dtype="bfloat16"), None, "warning"), (None, BRAIN, "warning"), (None, None, "info"))),
            fires("info", quantization=Quantization(bits=8, kind="int8", compute_dtype_is_default=True),
                  precision=BRAIN),
        ],
        [
            resembles("float16 that somebody chose, for a model that was made in it.", precision=HALF, hardware=V100,
                      quantization=Quantization(bits=4, compute_dtype="float16"), model=Model(dtype="float16")),
            *(quiet(quantization=quantization, model=model, precision=precision) for quantization, model, precision in (
                (Quantization(bits=4, compute_dtype="bfloat16"), Model(dtype="bfloat16"), BRAIN),
                (Quantization(bits=4, compute_dtype="float32", compute_dtype_is_default=True), None, BRAIN),
                (Quantization(bits=4, compute_dtype="float16"), Model(dtype="float16"), HALF),
                (Quantization(bits=8), None, Precision(compute="bfloat16", parameters="bfloat16")),
                (Quantization(bits=4), None, BRAIN),
            )),
        ],
    ),
    "quant-kernel-hardware": (
        [fires("warning", where={"key": "load_in_8bit"}, quantization=EIGHT,
               hardware=Hardware(name=name, bfloat16=False))
         for name in ("V100", "Tesla V100-SXM2-32GB", "P100")],
        [
            resembles("An old card too, and the first that has units for eight bits.",
                      quantization=EIGHT, hardware=Hardware(name="T4", bfloat16=False)),
            quiet(quantization=EIGHT, hardware=A100),
            quiet("four bits are computed otherwise", quantization=Quantization(bits=4, kind="nf4"), hardware=V100),
            quiet("kernels of another package", quantization=Quantization(bits=8, kind="gptq"), hardware=V100),
        ],
    ),
    "resized-embeddings-init": (
        [
            fires("warning", evidence={"ids": 32003, "rows": 32000}, training=TRAINER, parallel=zero(3), versions=OLD,
                  model=Model(vocabulary=32000), vocabulary=GROWN),
            fires("warning", evidence={"added_tokens": ["<tool>"]}, training=ADDED,
                  adapter=Adapter(kind="lora", target_modules=["q_proj"])),
        ],
        [
            resembles("The same resize where every rank holds all rows.", training=TRAINER, parallel=zero(2),
                      versions=OLD,
                      model=Model(vocabulary=32000), vocabulary=GROWN),
            *(quiet(training=TRAINER, parallel=zero(3), versions=versions, model=Model(vocabulary=32000),
                    vocabulary=Vocabulary(size=size))
              for versions, size in (
                  (transformers("4.32.0"), 32003), (transformers("5.23.0"), 32003), (OLD, 32000), (OLD, None),
                  ({}, 32003))),
            *(quiet("the new rows are trained", training=ADDED, adapter=one) for one in (
                Adapter(kind="lora", trainable=["embed_tokens", "lm_head"]), Adapter(kind="none"),
                Adapter(kind="prompt-tuning"))),
        ],
    ),
    "rope-precision": (
        [
            *(fires(severity, str(length), precision=precision, parallel=zero(), batching=Batching(max_length=length),
                    model=LLAMA, versions=transformers(version))
              for precision, length, version, severity in (
                  (BRAIN, 2048, "4.35.2", "warning"), (HALF, 4096, "4.35.2", "warning"),
                  (BRAIN, 16384, "4.57.1", "info"))),
        ],
        [
            resembles("float16 still counts to 2048, where bfloat16 counts to 256.", precision=HALF, parallel=zero(),
                      batching=Batching(max_length=2048), model=LLAMA, versions=transformers("4.35.2")),
            *(quiet(precision=precision, parallel=parallel, batching=Batching(max_length=length), model=model,
                    versions=transformers(version))
              for precision, model, parallel, length, version in (
                  (BRAIN, LLAMA, zero(), 2048, "4.57.1"), (BRAIN, LLAMA, DDP, 8192, "4.35.2"),
                  (BRAIN, Model(family="gpt2"), zero(), 8192, "4.35.2"),
                  (Precision(compute="float32"), LLAMA, zero(), 8192, "4.35.2"),
                  (BRAIN, LLAMA, zero(), None, "4.35.2"))),
        ],
    ),
    "zero-config-error": (
        [
            *(fires("warning", at=f"ds.json: {key}", precision=BRAIN, parallel=one) for one, key in (
                (zero(offload_parameters="cpu"), "zero_optimization.offload_param"),
                (zero(0, offload_optimizer="cpu"), "zero_optimization.offload_optimizer"),
                (zero(communication_dtype="fp16"), "communication_dtype"),
            )),
        ],
        [
            resembles("The same offloading in the stage that reads it.",
                      precision=BRAIN, parallel=zero(3, offload_parameters="cpu", offload_optimizer="cpu")),
            *(quiet(precision=BRAIN, parallel=one) for one in (
                zero(offload_optimizer="cpu"), zero(), zero(offload_parameters="none"),
                zero(communication_dtype="fp32"), FSDP,
            )),
        ],
    ),
}  # fmt: skip
