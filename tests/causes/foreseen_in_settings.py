"""What is foreseen from how a run is set up: where each cause fires, and what it may be taken for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.causes.parts import BRAIN, HALF, zero
from tests.causes.rows import Foreseen, fires, quiet, resembles, told

from finitune.causes.bf16_update_stagnation import moved_fraction
from finitune.facts import (
    Adapter,
    Attention,
    Batching,
    Disagreement,
    Optimizer,
    Parallel,
    Precision,
    Quantization,
    TensorScan,
    TokenUse,
    Training,
    UnknownKey,
    Vocabulary,
    Weights,
)

LORA, FULL = Adapter(kind="lora"), Adapter(kind="none")
FSDP = Parallel(kind="fsdp")
ADAM = Optimizer(name="adamw_torch")
TRAINER = Training(framework="transformers")

PURE = Precision(compute="float16", parameters="float16", scaler="none")
LOADED = Precision(compute="float16", parameters="float16", scaler="dynamic", source="a.json: fp16")
MIXED = Precision(compute="float16", parameters="float32", scaler="dynamic")
WHOLE = Precision(compute="bfloat16", parameters="bfloat16", scaler="none", source="a.json: bf16")

CHATML = Vocabulary(template_markers=["<|im_start|>", "<|im_end|>"])
DTYPE = Disagreement(
    key="precision.compute", values=["bfloat16", "float16"], sources=["ds.json: bf16.enabled", "run.sh: fp16"]
)
LENGTH = Disagreement(key="batching.max_length", values=["512", "1024"], sources=["a.yaml", "b.yaml"])
LEFT = Batching(padding_side="left", source="a.yaml")
EAGER, SDPA = Attention(implementation="eager"), Attention(implementation="sdpa")
PACKED = Batching(packing=True, source="a.yaml")
DATA = TokenUse(ids=np.array([1]), counts=np.array([1]), first=np.array([1]), sequences=320, source="data.jsonl")


def scaled(**more: Any) -> Precision:
    given: dict[str, Any] = {"compute": "float16", "scaler": "dynamic", "initial_scale": 65536.0, "min_scale": 1.0}
    return Precision(**{**given, "source": "ds.json: fp16.enabled", **more})


def run(**more: Any) -> Optimizer:
    return Optimizer(**{"lr": 1e-5, "source": "args.json", **more})


def lora(rank: int, alpha: float, **more: Any) -> Adapter:
    return Adapter(kind="lora", rank=rank, alpha=alpha, source="a.yaml", **more)


def talk(template: str | None, model: str | None = None, **more: Any) -> Training:
    return Training(chat_template=template, model_name=model, source="train.yaml", **more)


UNSCALED = scaled(scaler="none", parameters="float32", source="a.yaml: bits", requested_by="llama-factory")


CASES: Foreseen = {
    "adam-eps-underflow-fp16": (
        [
            *(fires("error", at="a.json: adam_epsilon", precision=PURE,
                    optimizer=Optimizer(name=name, eps=eps, source="a.json"))
              for name in ("adamw_torch", "AdamW", "Adam", "adamw_hf") for eps in (None, 1e-8, 2.0**-25)),
            # an eps that nobody wrote stands where the weights are said to be float16
            fires("error", at="b.yaml: trainer.precision", optimizer=Optimizer(name="adamw", source="b.yaml"),
                  precision=replace(PURE, source="b.yaml: trainer.precision")),
            fires("warning", precision=PURE, optimizer=Optimizer()),
            fires("error", "embed_tokens beside the adapter", precision=PURE,
                  optimizer=replace(ADAM, lora=True), adapter=Adapter(kind="lora", trainable=["embed_tokens"])),
        ],
        [
            resembles("float16 under autocast keeps the weights, and with them eps, in float32.",
                      precision=MIXED, optimizer=ADAM),
            resembles("Weights of an adapter are float32 beside a base in float16.",
                      precision=PURE, optimizer=replace(ADAM, lora=True), adapter=LORA),
            quiet("a scaler refuses such weights", instead="fp16-trainable-weights",
                  precision=replace(PURE, scaler="dynamic"), optimizer=ADAM),
            quiet("1e-8 is a number in bfloat16", precision=WHOLE, optimizer=ADAM),
            *(quiet(precision=PURE, optimizer=one) for one in (
                Optimizer(name="adamw_torch", eps=1e-5), Optimizer(name="adamw_torch_fused"),
                Optimizer(name="adamw_bnb_8bit"), Optimizer(name="adafactor"), Optimizer(name="sgd"),
                Optimizer(name="adamw_torch", lora=True),
            )),
            quiet("an adapter", precision=PURE, optimizer=ADAM, adapter=LORA),
            quiet("the engine keeps a float32 copy", precision=PURE, optimizer=ADAM,
                  parallel=Parallel(kind="deepspeed")),
        ],
    ),
    "benign-length-grouping": (
        [fires("info", batching=Batching(group_by_length=True, source="args.json"))],
        [
            resembles("Packing too goes by length, and leaves no sawtooth.", batching=Batching(packing=True)),
            quiet("nobody said so", batching=Batching()),
            quiet("switched off", batching=Batching(group_by_length=False)),
        ],
    ),
    "bf16-update-stagnation": (
        [
            *(fires(severity, "cosine", where={"key": "learning_rate"}, precision=WHOLE,
                    evidence={"moved_fraction": pytest.approx(moved_fraction(lr, 0.02))},
                    optimizer=Optimizer(lr=lr, lora=lora, source="a.json", schedule="cosine"))
              for lr, lora, severity in (
                  (1e-6, False, "warning"), (5e-6, False, "warning"), (1e-5, False, "info"), (1e-6, None, "info"))),
            fires("info", "weight decay 0.01", precision=WHOLE,
                  optimizer=Optimizer(lr=1e-3, weight_decay=0.01, lora=False)),
        ],
        [
            resembles("The same rate under autocast moves weights that are held in float32.",
                      precision=Precision(compute="bfloat16", parameters="float32"), optimizer=Optimizer(lr=1e-6)),
            quiet("weights so small that the update moves them", precision=WHOLE,
                  optimizer=Optimizer(lr=1e-5, lora=False),
                  weights=Weights(tensors=[TensorScan(
                      name="a", dtype="bfloat16", shape=(4, 4), nonfinite=0, peak=0.01, rms=1e-3)])),
            *(quiet(precision=precision, optimizer=Optimizer(lr=1e-6), **more) for precision, more in (
                (BRAIN, told()), (WHOLE, told(parallel=zero())), (WHOLE, told(parallel=FSDP)),
                (WHOLE, told(adapter=LORA)),
                (Precision(compute="bfloat16", parameters="bfloat16", source="ds.json: bf16.enabled"), told()),
            )),
            *(quiet(precision=WHOLE, optimizer=one) for one in (
                Optimizer(lr=1e-3), Optimizer(lr=1e-6, lora=True), Optimizer(lr=0.0),
                Optimizer(lr=1e-6, name="adamw_anyprecision"),
            )),
        ],
    ),
    "chat-template-mismatch": (
        [
            fires("warning", "<|start_header_id|>", "<|im_start|>", training=talk("llama3"), vocabulary=CHATML),
            fires("warning", training=talk("llama3", "Qwen/Qwen2.5-7B-Instruct")),
            fires("info", training=talk("llama3", "google/gemma-2-9b")),
            fires("info", training=talk("llama3", "Hermes-2-Pro-Llama-3-8B")),
            fires("info", "never trained", training=talk("llama3", "meta-llama/Meta-Llama-3-8B")),  # the base model
        ],
        [
            resembles("Llama in its name, but tuned on ChatML, which is the template.",
                      training=talk("chatml", "NousResearch/Hermes-3-Llama-3.1-8B"), vocabulary=CHATML),
            *(quiet(training=talk(template, model), vocabulary=vocabulary) for template, model, vocabulary in (
                ("qwen", "Qwen/Qwen2.5-7B-Instruct", CHATML), ("chatml", None, CHATML),
                ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct", None),
                ("default", "Qwen/Qwen2.5-7B-Instruct", CHATML),
                ("alpaca", "Qwen/Qwen2.5-7B", None), (None, "Qwen/Qwen2.5-7B", CHATML),
                ("chatml", "NousResearch/Hermes-3-Llama-3.1-8B", None), ("llama3", "own/model", None),
                ("chatml", "own/model", Vocabulary(template_markers=[])),
            )),
            quiet("in pretraining nobody talks", training=talk("llama3", "Qwen/Qwen2.5-7B", method="pt")),
        ],
    ),
    "config-disagreement": (
        [
            fires("error", "run.sh", at="ds.json: bf16.enabled", evidence={"auto_key": "bf16.enabled"},
                  disagreements=[DTYPE], parallel=zero(), training=TRAINER),
            *(fires("warning", "counts", disagreements=[one], parallel=parallel, training=training)
              for one, parallel, training in (
                  (LENGTH, zero(), TRAINER), (DTYPE, zero(), Training(framework="deepspeed")), (DTYPE, zero(), None),
                  (DTYPE, None, TRAINER))),
        ],
        [resembles("Two files that say the same.", disagreements=[], parallel=zero())],
    ),
    "fp16-backward-overflow": (
        [
            fires("warning", at="ds.json: loss_scale", precision=scaled(scaler="static", min_scale=None)),
            fires("warning", at="ds.json: min_loss_scale", precision=scaled(min_scale=4096.0)),
        ],
        [
            resembles("2**32 is as high, and a dynamic scale comes down by itself.",
                      instead="normal-scaler-warmup", precision=scaled(initial_scale=2.0**32, min_scale=None)),
            *(quiet(precision=one) for one in (
                scaled(), scaled(scaler="static", initial_scale=1024.0, min_scale=None), HALF, BRAIN)),
        ],
    ),
    "fp16-trainable-weights": (
        [
            *(fires(severity, "unscale", where={"key": "fp16"}, precision=LOADED, optimizer=one)
              for one, severity in ((Optimizer(lora=False), "error"), (Optimizer(), "warning"), (None, "warning"))),
            fires("error", precision=LOADED, adapter=FULL),
        ],
        [
            resembles("An adapter is float32 beside a base that was loaded in float16.", precision=LOADED,
                      adapter=LORA),
            resembles("Without a scaler nothing is unscaled: what Adam does with such weights is another cause.",
                      instead="adam-eps-underflow-fp16", precision=PURE, optimizer=ADAM),
            *(quiet(precision=precision, **more) for precision, more in (
                (MIXED, told()), (Precision(compute="float16", scaler="dynamic"), told()), (WHOLE, told()),
                (PURE, told()),
                (LOADED, told(optimizer=Optimizer(lora=True))), (LOADED, told(parallel=zero())),
                (replace(LOADED, source="ds.json: fp16.enabled"), told()),
            )),
        ],
    ),
    "fully-masked-attention-rows": (
        [
            fires("warning", at="a.yaml: padding_side",
                  optimizer=Optimizer(batch=4), precision=HALF, batching=LEFT, attention=EAGER),
            fires("info", optimizer=Optimizer(), precision=HALF, batching=LEFT),
            fires("info", optimizer=Optimizer(), precision=HALF, attention=EAGER,
                  vocabulary=Vocabulary(padding_side="left")),
            fires("info", optimizer=Optimizer(), batching=LEFT,
                  quantization=Quantization(bits=4, compute_dtype="float16")),
        ],
        [
            resembles("One row a batch is never padded, on whichever side.",
                      optimizer=Optimizer(batch=1), precision=HALF, batching=LEFT, attention=EAGER),
            *(quiet(optimizer=Optimizer(), **facts) for facts in (
                told(precision=BRAIN, batching=LEFT, attention=EAGER),
                told(precision=HALF, batching=Batching(padding_side="right"), attention=EAGER),
                told(precision=HALF, batching=Batching(padding_side="left", packing=True)),
                told(precision=HALF, batching=LEFT, attention=Attention(implementation="flash_attention_2")),
                told(precision=HALF, batching=LEFT, attention=replace(EAGER, dtype="float32")),
                told(precision=HALF),
                told(),
            )),
        ],
    ),
    "logging-hides-nan": (
        [fires("info", patch={"logging_nan_inf_filter": False},
               training=Training(nan_filter=True, source="args.json"))],
        [
            resembles("A log that was asked to show every NaN.", training=Training(nan_filter=False)),
            quiet("nobody asked for the filter", training=Training()),
        ],
    ),
    "lora-scale-or-init": (
        [
            fires("warning", where={"key": "lora_alpha"}, evidence={"scale": 32},
                  optimizer=Optimizer(lr=5e-4), adapter=lora(8, 256)),
            fires("error", optimizer=Optimizer(lr=5e-4), adapter=lora(8, 0)),  # an adapter that adds nothing
        ],
        [
            resembles("The alpha is as large, but divided by the root of a large rank.",
                      optimizer=Optimizer(lr=2e-4), adapter=lora(64, 64, rank_stabilised=True)),
            *(quiet(optimizer=Optimizer(lr=lr), adapter=one) for lr, one in (
                (2e-4, lora(16, 32)), (2e-4, lora(64, 16)), (5e-4, lora(8, 128)), (1e-2, lora(8, 16)),
                (None, lora(8, 16)), (2e-4, LORA), (2e-4, FULL),
            )),
        ],
    ),
    "loss-scale-exhaustion": (
        [
            *(fires(severity, said, where={"key": key}, patch={key: better}, precision=scaled(source=None, **given))
              for given, severity, key, better, said in (
                  ({"initial_scale": 16.0, "hysteresis": 2}, "warning", "fp16.initial_scale_power", 16, "6 overflows"),
                  ({"min_scale": 0.0}, "info", "fp16.min_loss_scale", 1, "learns nothing"),
                  ({"scale_window": 4}, "warning", "fp16.loss_scale_window", 1000, "1 step in 5"),
                  ({"scaler": "static", "initial_scale": 1.0}, "warning", "fp16.loss_scale", 0, "fixed at 1"))),
            *(fires(severity, "below 6e-08 become 0", where={"key": "bits"}, patch={"fp16": True},
                    precision=UNSCALED, adapter=adapter)
              for adapter, severity in ((FULL, "warning"), (None, "warning"), (LORA, "info"))),
        ],
        [
            resembles("2**32 overflows for 17 steps, and has that much room.", instead="normal-scaler-warmup",
                      precision=scaled(initial_scale=2.0**32)),
            *(quiet(precision=one) for one in (
                scaled(), scaled(scale_window=100), scaled(initial_scale=4096.0),
                scaled(scaler="static", initial_scale=128.0), scaled(scaler="static", initial_scale=1024.0),
                scaled(initial_scale=None, min_scale=None), Precision(compute="bfloat16", scaler="none"), PURE, HALF,
                Precision(compute="float16", scaler="none", cpu=True, requested_by="torch"),
                Precision(compute="float16", scaler="none", requested_by="ludwig"),
            )),
        ],
    ),
    "lr-schedule-mismatch": (
        [
            *(fires(severity, said, patch={"warmup_steps": 6}, optimizer=run(warmup_steps=warm, max_steps=200))
              for warm, severity, said in ((1000, "warning", "20%"), (150, "info", "over half"))),
            fires("info", optimizer=run(warmup_ratio=0.9)),
            fires("warning", "320 rows, 32 a step", evidence={"steps": 30}, tokens=DATA, parallel=Parallel(world=2),
                  optimizer=run(warmup_steps=500, batch=4, accumulation=4, epochs=3)),
            fires("warning", "after 500 steps", optimizer=run(schedule_steps=500, max_steps=1000)),
        ],
        [
            resembles("A warm-up of 500 steps in a run of thousands.",
                      optimizer=run(warmup_steps=500, max_steps=10_000)),
            *(quiet(optimizer=run(warmup_ratio=share)) for share in (0.5, 0.03, 1.5, None)),
            *(quiet(optimizer=run(**given), tokens=DATA, parallel=Parallel(world=2)) for given in (
                {"warmup_steps": 10, "max_steps": 200}, {"warmup_steps": 1000}, {"warmup_steps": 1000, "max_steps": -1},
                {"warmup_steps": 0, "max_steps": 200}, {"schedule_steps": 1000, "max_steps": 1000}, {"max_steps": 1000},
            )),
            quiet("nobody knows how many rows packing makes", tokens=DATA, parallel=Parallel(world=2),
                  batching=Batching(packing=True), optimizer=run(warmup_steps=500, batch=4, epochs=3)),
        ],
    ),
    "lr-too-high": (
        [
            *(fires(severity, f"{lr:g}", where={"file": "a.json"}, evidence={"lr": lr},
                    optimizer=Optimizer(lr=lr, lora=lora, name=name, source="a.json"))
              for name in (None, "adamw_torch", "AdamW", "paged_adamw_8bit", "FusedAdam", "adamw_bnb_8bit")
              for lr, lora, severity in (
                  (2e-3, False, "warning"), (2e-2, False, "error"), (5e-3, True, "warning"), (1e-1, True, "error"),
                  (5e-3, None, "warning"), (1.0, None, "error"))),
            *(fires("error", "SGD", optimizer=Optimizer(lr=lr, clip=clip, name="sgd"))
              for lr, clip in ((30.0, None), (30.0, 0.0), (100.0, 1.0), (100.0, 0.25))),
            *(fires("warning", "without warm-up", optimizer=Optimizer(lr=lr, lora=lora, warmup_steps=0))
              for lr, lora in ((2e-4, False), (1e-3, True))),
            *(fires("warning", optimizer=Optimizer(lr=3e-2, lora=True), adapter=one) for one in (LORA, FULL,
                    Adapter())),
            # a loop that names no optimizer may train with SGD
            *(fires(severity, optimizer=Optimizer(lr=lr), training=Training(framework=framework))
              for lr, framework, severity in (
                  (0.1, "lightning", "warning"), (0.1, "transformers", "error"), (20.0, "lightning", "error"))),
        ],
        [
            resembles("A rate of SGD, whose steps are not as long as its rate.",
                      optimizer=Optimizer(lr=0.1, name="sgd")),
            resembles("A rate of soft prompts, which are trained as fast as that.",
                      optimizer=Optimizer(lr=3e-2, lora=True), adapter=Adapter(kind="prompt_tuning")),
            resembles("A rate that full fine-tuning only stands with the warm-up that this run has.",
                      optimizer=Optimizer(lr=2e-4, lora=False, warmup_steps=0, warmup_ratio=0.1)),
            quiet("scales too", optimizer=Optimizer(lr=3e-2, lora=True), adapter=Adapter(kind="ia3")),
            *(quiet(optimizer=one) for one in (
                Optimizer(lr=2e-5, lora=False), Optimizer(lr=1e-3, lora=False), Optimizer(lr=2e-4, lora=True),
                Optimizer(lr=2e-3, lora=True), Optimizer(lr=2e-3), Optimizer(), Optimizer(lr=0.0),
                Optimizer(lr=30.0, name="sgd", clip=0.25), Optimizer(lr=1.0, name="prodigy"),
                Optimizer(lr=1e-2, name="adafactor"), Optimizer(lr=1e-2, name="galore_adamw"),
                Optimizer(lr=2e-2, name="Muon"), Optimizer(lr=2e-2, name="schedule_free_adamw"),
                Optimizer(lr=1e-2, name="apollo_adamw"), Optimizer(lr=2e-5, lora=False, warmup_steps=0),
                Optimizer(lr=2e-4, lora=True, warmup_steps=0), Optimizer(lr=2e-4, lora=False),
            )),
        ],
    ),
    "misspelt-setting": (
        [
            fires("warning", "did you mean bf16 or fp16?", at="a.json: bp16",
                  unknown_keys=[UnknownKey(file="a.json", key="bp16", near=["bf16", "fp16"])]),
            fires("info", unknown_keys=[UnknownKey(file="a.json", key="my_flag")]),  # may be the script's own
            fires("warning", "adamv", unknown_keys=[
                UnknownKey(file="a.json", key="optim", value="adamv", release="transformers 5.23")]),
        ],
        [resembles("A file of which every key is known.", unknown_keys=[])],
    ),
    "missing-gradient-clipping": (
        [
            *(fires(severity, where={"key": "max_grad_norm"}, optimizer=Optimizer(clip=0.0, source="a.json"),
                    precision=one)
              for one, severity in ((HALF, "warning"), (BRAIN, "info"), (None, "info"))),
            *(fires(severity, optimizer=Optimizer(clip=0.0, lr=lr, lora=lora))
              for lr, lora, severity in ((2e-4, False, "warning"), (2e-4, True, "info"), (1e-5, False, "info"))),
        ],
        [
            resembles("A clip that nobody named, which trainers set to 1.", optimizer=Optimizer(), precision=HALF),
            *(quiet(optimizer=Optimizer(clip=clip), precision=HALF) for clip in (1.0, 0.3)),
        ],
    ),
    "normal-scaler-warmup": (
        [fires("info", at="ds.json: initial_scale_power", evidence={"skipped_steps": 17},
               precision=scaled(initial_scale=2.0**32, hysteresis=2))],
        [
            resembles("The same scale never comes down where it is fixed.", instead="fp16-backward-overflow",
                      precision=scaled(scaler="static", initial_scale=2.0**32)),
            *(quiet(precision=one) for one in (scaled(hysteresis=2), BRAIN, HALF)),
        ],
    ),
    "packing-mask-leak": (
        [fires("info", at="a.yaml: packing", batching=PACKED, attention=one) for one in (SDPA, EAGER)],
        [
            resembles("Packed too, for a kernel that is told where documents end.",
                      batching=PACKED, attention=Attention(implementation="flash_attention_2")),
            quiet("no kernel named", batching=PACKED),
            quiet("not packed", batching=Batching(packing=False), attention=SDPA),
            quiet("nobody said so", batching=Batching(), attention=SDPA),
        ],
    ),
    "precision-request-ignored": (
        [
            *(fires(severity, said, at="args.json: fp16",
                    precision=scaled(cpu=True, requested_by=who, source="args.json: fp16"))
              for who, severity, said in (
                  ("transformers", "warning", "float32"), ("accelerate", "warning", "float32"),
                  ("lightning", "warning", "bfloat16"), ("deepspeed", "error", "refuses"))),
        ],
        [
            resembles("bfloat16 on a CPU is computed as it was asked for.",
                      precision=Precision(compute="bfloat16", scaler="none", cpu=True)),
            *(quiet(precision=scaled(**given)) for given in ({"cpu": None}, {"cpu": False},
                    {"cpu": True, "scaler": "none"})),
        ],
    ),
    "rl-group-std-zero": (
        [fires("error", patch={"num_generations": 8}, training=Training(generations=1, source="grpo.yaml"))],
        [
            resembles("One answer each too, but a teacher says what is good: nothing is compared.",
                      training=Training(generations=1, teacher="a/b")),
            *(quiet(training=Training(generations=number)) for number in (None, 2, 8)),
        ],
    ),
}  # fmt: skip
