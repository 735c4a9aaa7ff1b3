"""What is foreseen from the files of the model and of the data: where each fires, and what it may be taken for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.causes.parts import BRAIN, HALF, NAN, labels, rows, scanned, tensor, use
from tests.causes.rows import Foreseen, fires, quiet, resembles, told

from finitune.facts import (
    Activations,
    Adapter,
    Attention,
    Batching,
    EmbeddingRows,
    Labels,
    Model,
    Optimizer,
    Precision,
    TokenUse,
    Training,
    Vocabulary,
    Weights,
)
from finitune.naming import ActivationPeak, Reach

LORA = Adapter(kind="lora", target_modules=["q_proj"])
EAGER, SDPA = Attention(implementation="eager"), Attention(implementation="sdpa")
RUN = Optimizer(lr=1e-5)
TIED = Model(tied=True)


def cut(kept: int, whole: int, number: int, more: int = 0) -> Labels:
    """Rows of which truncation leaves so many targets, and more that stay whole."""
    supervised, before = [kept] * number + [whole] * more, [whole] * (number + more)
    return Labels(supervised=np.array(supervised), whole=np.array(before), lengths=np.array(before) + 60)


NORM = tensor("model.layers.1.input_layernorm.weight", shape=(4,))
NORM_OF_ZEROS = tensor("model.layers.0.input_layernorm.weight", peak=0, shape=(4,))
DOWN = "model.layers.0.mlp.down_proj.weight"

HALVED = Precision(compute="float16", source="ds.json: fp16.enabled")
BF_LLAMA, BF_QWEN = Model(family="llama", dtype="bfloat16"), Model(family="qwen2", dtype="bfloat16")
HALF_LLAMA, BF_T5 = Model(family="llama", dtype="float16"), Model(family="t5", dtype="bfloat16")


def wide(overflow: int = 0, peak: float = 0.5) -> Weights:
    return Weights(tensors=[tensor("a.wo.weight", peak=peak, rms=0.1, overflow=overflow)])


def reached(value: float, *, what: str = "gate * up", pads: bool = False) -> Activations:
    """What a token makes of itself in the first layers."""
    peak = ActivationPeak(module="model.layers.2.mlp", what=what, token=3, value=value)
    low = ActivationPeak(module="model.layers.0.mlp", what="output", token=5, value=2.0)
    first, padding = ([low], [peak]) if pads else ([low, peak], [])
    return Activations(first=first, padding=padding, ids=np.array([3, 5]))


UP = "model.layers.0.mlp.up_proj.weight"
SCORES = reached(7e4, what="query . key")
NEAR = reached(6e4, what="query . key")


def tiny(underflow: int, name: str = UP, shape: tuple[int, ...] = (100, 10)) -> Weights:
    return scanned(tensor(name, shape=shape, peak=1e-5, rms=1e-7, underflow=underflow))


def mixture(family: str = "mixtral", experts: int | None = 8, each: int = 1, **more: Any) -> Model:
    return Model(family=family, experts=experts, experts_per_token=each, **more)


def whole(nonfinite: int, name: str = "layers.0.self_attn.q_proj.weight") -> Weights:
    return scanned(tensor(name, shape=(8, 8), peak=0.1, rms=0.02, nonfinite=nonfinite))


PURE = Precision(compute="float16", parameters="float16")
LAYERS = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight")


def held(*names: str, problems: tuple[str, ...] = ()) -> Weights:
    return scanned(*(tensor(name, shape=(8, 8), peak=0.1, rms=0.02) for name in names), problems=problems)


LUDWIG = Batching(padding_side="left", pad_id=0, source="model.yaml")
MISTRAL = Vocabulary(eos_id=2, unk_id=0, source="model/tokenizer.json")
FOUR = Optimizer(batch=4)


def head(sizes: dict[int, float], twins: dict[int, int] | None = None) -> EmbeddingRows:
    return replace(rows(sizes, twins=twins, apart=1e-4), tensor="lm_head.weight", median_rms=0.02)


def learned(*ids: int) -> TokenUse:
    return use({}, dict.fromkeys(ids, 1), sequences=5, names={6: "<|im_end|>"}, pad_id=0)


TOWER = "vpm.encoder.layers.1.mlp.fc1.weight"


def reaches(value: float) -> Weights:
    return Weights(tensors=[], reaches=[Reach(tensor=TOWER, row=7, value=value)])


def pair(embedding: float, output: float | None) -> Weights:
    sizes = {"model.embed_tokens.weight": embedding, "lm_head.weight": output}
    return scanned(*(tensor(name, shape=(8, 4), rms=rms, file="m") for name, rms in sizes.items() if rms is not None))


CASES: Foreseen = {
    "all-labels-ignored": (
        [
            # by how likely a batch without any target is
            *(fires(severity, labels=one, optimizer=Optimizer(batch=batch)) for one, batch, severity in (
                (labels(0, 5, 5), 1, "error"), (labels(0, 0), None, "error"), (labels(0, 5, 5), None, "warning"),
                (labels(0, 5, 5, 5), 2, "warning"), (labels(*[0] * 90, *[5] * 10), 2, "error"),
                (labels(0, 0, *[5] * 1000), 2, "warning"),
            )),
            fires("warning", "2 of 4 rows", "lines 2, 4", where={"file": "d.jsonl", "rows": [1, 3]},
                  evidence={"lines": [2, 4], "unsupervised_rows": 2},
                  labels=labels(4, 0, 4, 0, source="d.jsonl", row_lines=np.arange(1, 5))),
            fires("warning", "40 of 40 rows", "30 target tokens become 4", labels=cut(4, 30, 40),
                  todo="raise max_length (these rows have 90 tokens)"),
        ],
        [
            resembles("Truncation takes of every row, and leaves most of each answer.", labels=cut(16, 30, 40)),
            resembles("A row with a single target is enough for a mean over its batch.", labels=labels(1, 7, 300)),
            quiet("one row in forty", labels=cut(4, 30, 1, more=39)),
            quiet(labels=labels(5, 5)),
            *(quiet(labels=labels(1, 7, 300), optimizer=Optimizer(batch=batch)) for batch in (None, 1, 4, 0)),
        ],
    ),
    "corrupt-checkpoint": (
        [
            fires("error", "3 of 16", where={"file": "x.safetensors", "tensor": "a.weight"},
                  evidence={"nonfinite": 3, "first_nonfinite": [1, 2]},
                  weights=scanned(tensor(nonfinite=3, first_nonfinite=[1, 2], file="x.safetensors"))),
            fires("error", weights=scanned(NORM_OF_ZEROS, NORM)),
            *(fires("warning", weights=scanned(tensor(name, peak=0))) for name in (
                DOWN, "h.3.attn.c_attn.weight", "lm_head.weight", "t.wo.weight")),
            fires("error", "3e+08", weights=scanned(tensor(DOWN, peak=3e8))),
            fires("error", "2048 weights and config.json says hidden size 4096", model=Model(hidden=4096),
                  weights=scanned(tensor("model.norm.weight", shape=(2048,)))),
            fires("error", "64 rows and config.json says vocab_size 100", model=Model(hidden=16, vocabulary=100),
                  weights=scanned(tensor("model.embed_tokens.weight", shape=(64, 16)))),
        ],
        [
            resembles("All of a tensor is NaN: training wrote it so, no transfer did.",
                      instead="nan-saved-in-checkpoint",
                      weights=scanned(tensor(shape=(8, 8), nonfinite=64)), model=Model()),
            resembles("Zeros that LoRA begins with.", model=Model(),
                      weights=scanned(tensor("a.q_proj.lora_B.weight", peak=0), NORM)),
            resembles("Norms that are stored as what they differ from 1 by, so that all are 0.", model=Model(),
                      weights=scanned(NORM_OF_ZEROS, tensor("model.norm.weight", peak=0, shape=(4,)))),
            resembles("A large number that is a mask.", model=Model(),
                      weights=scanned(tensor("transformer.h.0.attn.masked_bias", peak=1e9, shape=()))),
            *(quiet("zeros that are meant", weights=scanned(tensor(name, peak=0), NORM)) for name in (
                "a.q_proj.bias", "a.q_proj.lora_B.default.weight", "a.lora_A.weight", "cross.attn_gate",
                "a.embed.weight", "x.adapter.up.weight")),
            quiet("nothing is 0 but a scalar",
                  weights=scanned(tensor("a.q_proj.weight"), NORM, tensor(peak=0, shape=()))),
            quiet(model=Model(hidden=2048), weights=scanned(tensor("model.norm.weight", shape=(2048,)))),
        ],
    ),
    "fp16-activation-overflow": (
        [
            *(fires(severity, at="ds.json: fp16.enabled", evidence={"max_float16": 65504}, precision=HALVED,
                    model=Model(family=family, dtype="bfloat16"), weights=wide(peak=2.0))
              for family, severity in (
                  ("qwen2", "warning"), ("t5", "warning"), ("gemma2", "warning"), ("llama", "info"), (None, "info"))),
            fires("warning", precision=HALVED, model=BF_QWEN, weights=wide()),
            fires("info", precision=HALVED, model=BF_LLAMA),
            fires("error", "70144", where={"tensor": "a.wo.weight"}, precision=HALVED, model=BF_LLAMA,
                  weights=wide(overflow=3, peak=70144.0)),
            # a token that leaves the range by itself
            fires("error", "2e+05", where={"module": "model.layers.2.mlp", "tokens": [3]}, evidence={"padding": False},
                  precision=HALVED, model=HALF_LLAMA, weights=wide(), activations=reached(2e5)),
            fires("warning", "2e+05", "pads rows", where={"module": "model.layers.2.mlp", "tokens": [3]},
                  evidence={"padding": True}, precision=HALVED, model=HALF_LLAMA, weights=wide(),
                  activations=reached(2e5, pads=True)),
            # a raw score, which eager attention stores
            fires("error", precision=HALVED, model=HALF_LLAMA, weights=wide(), activations=SCORES, attention=EAGER),
            fires("warning", where={"module": "model.layers.2.mlp"}, precision=HALVED, model=BF_QWEN, weights=wide(),
                  activations=NEAR, attention=EAGER),
            fires("warning", "family", precision=HALVED, model=BF_QWEN, weights=wide(), attention=EAGER,
                  activations=reached(2e4, what="query . key")),
            fires("warning", precision=HALVED, model=BF_T5, weights=wide(), activations=NEAR,
                  attention=SDPA),  # no score
            fires("info", precision=HALVED, model=BF_LLAMA, weights=wide(peak=50.0)),
            fires("info", precision=HALVED, model=BF_LLAMA, weights=wide(peak=50.0), activations=reached(30000.0)),
        ],
        [
            resembles("Weights that stand out, whose first tokens are known to stay in range.",
                      precision=HALVED, model=BF_LLAMA, weights=wide(peak=50.0), activations=reached(100.0)),
            resembles("A score beyond the range that fused attention never stores.",
                      precision=HALVED, model=HALF_LLAMA, weights=wide(), activations=SCORES, attention=SDPA),
            resembles("The same token in bfloat16, which holds it.",
                      precision=BRAIN, model=BF_LLAMA, weights=wide(peak=50.0), activations=reached(2e5)),
            quiet("no kernel named", precision=HALVED, model=HALF_LLAMA, weights=wide(), activations=SCORES),
            quiet("fused", precision=HALVED, model=BF_QWEN, weights=wide(), activations=NEAR, attention=SDPA),
            *(quiet(precision=precision, model=model, weights=wide()) for precision, model in (
                (BRAIN, BF_T5), (Precision(compute="float32"), BF_T5), (Precision(), BF_T5), (HALVED, HALF_LLAMA),
                (HALVED, Model(family="gemma", dtype="float32")), (HALVED, BF_LLAMA),
            )),
        ],
    ),
    "fp16-underflow-in-weights": (
        [
            fires(severity, f"{underflow / 10:.1f}%", where={"tensor": UP},
                  evidence={"share": underflow / 1000}, precision=HALF, weights=tiny(underflow))
            for underflow, severity in ((60, "warning"), (600, "error"))
        ],
        [
            resembles("The same weights in bfloat16, which holds them.", precision=BRAIN, weights=tiny(600)),
            resembles("Rows of tokens are looked at one by one, by another chapter.",
                      precision=HALF, weights=tiny(600, name="model.embed_tokens.weight")),
            quiet("one in a hundred", precision=HALF, weights=tiny(10)),
            quiet("no matrix", precision=HALF, weights=tiny(600, shape=(1000,))),
            quiet(precision=HALF, weights=Weights(tensors=[])),
        ],
    ),
    "moe-router": (
        [fires("warning", model=mixture("qwen3_moe", renormalised=True)), fires("warning", model=mixture())],
        [
            resembles("One expert too, but its gate is a sigmoid that nothing divides.", model=mixture("llama4", 16)),
            resembles("Two experts, whose shares are no constant.", model=mixture(each=2)),
            quiet(model=mixture("qwen3_moe", renormalised=False)),
            quiet(model=mixture("llama", None)),
        ],
    ),
    "nan-saved-in-checkpoint": (
        [
            fires("error", "2 of 3 tensors", where={"tensor": "layers.0.self_attn.q_proj.weight"}, weights=scanned(
                *(one for given in (whole(64), whole(64, "layers.0.mlp.up_proj.lora_A.weight"), whole(0))
                  for one in given.tensors))),
        ],
        [resembles("Single values of a tensor are damaged by a transfer, not by training.",
                   instead="corrupt-checkpoint",
                   weights=scanned(*whole(3).tensors, *whole(0).tensors))],
    ),
    "norm-eps-underflow-fp16": (
        [fires(severity, "1e-08", precision=PURE, model=Model(norm_eps=1e-8, path="model"), training=training)
         for training, severity in ((None, "warning"), (Training(framework="transformers"), "info"))],
        [
            resembles("A small eps too, which float16 still holds.",
                      precision=PURE, model=Model(norm_eps=1e-6)),
            resembles("Under autocast a norm computes in float32.", precision=HALF, model=Model(norm_eps=1e-12)),
            *(quiet(precision=PURE, model=Model(norm_eps=eps)) for eps in (1e-5, None)),
            quiet(precision=BRAIN, model=Model(norm_eps=1e-8)),
        ],
    ),
    "tokenizer-vocab-mismatch": (
        [
            fires("error", where={"tokens": [32000, 32002]}, model=Model(vocabulary=32000),
                  tokens=use({3: 1, 32000: 1, 32002: 1}),
                  evidence={"rows": 32000, "largest_id": 32002, "ids_beyond": 2}),
            fires("warning", tokens=use({3: 1}, pad_id=32000), model=Model(vocabulary=32000)),
        ],
        [
            resembles("config.json names fewer rows than are stored.", tokens=use({3: 1, 32001: 1}),
                      model=Model(vocabulary=32000),
                      weights=scanned(tensor("model.embed_tokens.weight", shape=(32064, 8)))),
            quiet("the last row", tokens=use({3: 1, 31999: 1}, pad_id=0), model=Model(vocabulary=32000)),
            quiet("nobody told how many", tokens=use({3: 1, 99: 1}), model=Model()),
            *(quiet("nothing is padded", tokens=use({3: 1}, pad_id=32000), model=Model(vocabulary=32000), **more)
              for more in (told(optimizer=Optimizer(batch=1)), told(batching=Batching(packing=True)))),
        ],
    ),
    "uninitialised-weights": (
        [
            fires("error", "4 layers", evidence={"absent": [2, 3]}, weights=held(*LAYERS),
                  model=Model(layers=4, tied=True)),
            fires("error", "output head", weights=held(*LAYERS), model=Model(layers=2, tied=False), optimizer=RUN),
            fires("info", weights=held(*(name.removeprefix("model.") for name in LAYERS)), optimizer=RUN,  # an encoder?
                  model=Model(layers=2, tied=False)),
        ],
        [
            resembles("No head is stored, and the embedding is one.", weights=held(*LAYERS),
                      model=Model(layers=2, tied=True)),
            resembles("A file is not there, and its layers with it.", instead="corrupt-checkpoint", optimizer=RUN,
                      weights=held(*LAYERS, problems=("model-2.safetensors: not there",)),
                      model=Model(layers=4, tied=False)),
            resembles("An adapter stores no more than itself.", optimizer=RUN, model=Model(layers=2, tied=False),
                      weights=held("base_model.model.model.layers.0.q_proj.lora_A.weight")),
            *(quiet(weights=weights, model=model, optimizer=RUN) for weights, model in (
                (held(*LAYERS), Model(layers=2)),
                (held(*LAYERS, "lm_head.weight"), Model(layers=2, tied=False)),
                (held(*LAYERS, "score.weight"), Model(layers=2, tied=False)),
                (held("transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"), Model(layers=1)),
                (held("vision.layers.3.w.weight", *LAYERS), Model(layers=2, tied=True)),
            )),
        ],
    ),
    "unmasked-padding": (
        [
            fires("error", at="model/tokenizer_config.json: pad_token", evidence={"masked": 2}, batching=LUDWIG,
                  optimizer=FOUR, vocabulary=MISTRAL, rows=rows({0: 0.0}), precision=HALF),
            *(fires("warning", batching=LUDWIG, optimizer=Optimizer(), vocabulary=MISTRAL, **more) for more in (
                told(), told(rows=rows({}), precision=HALF), told(rows=rows({0: 0.0})))),  # gradients may bear it
            fires("warning", batching=LUDWIG, optimizer=Optimizer(), vocabulary=Vocabulary(eos_id=2, pad_id=3)),
            fires("info", batching=LUDWIG, optimizer=Optimizer()),  # the tokenizer is not known
        ],
        [
            resembles("Padding on the left by the token that the tokenizer calls padding.", batching=LUDWIG,
                      optimizer=FOUR, vocabulary=Vocabulary(eos_id=2, pad_id=0), rows=rows({0: 0.0}), precision=HALF),
            *(quiet(batching=batching, optimizer=optimizer, vocabulary=MISTRAL, rows=rows({0: 0.0}), precision=HALF)
              for batching, optimizer in (
                  (LUDWIG, Optimizer(batch=1)), (Batching(padding_side="left"), FOUR),
                  (Batching(padding_side="right", pad_id=0), FOUR), (replace(LUDWIG, packing=True), FOUR))),
        ],
    ),
    "untrained-output-rows": (
        [
            *(fires(severity, "6 <|im_end|>", where={"tokens": [6]}, tokens=learned(3, 6), head_rows=head({6: 1e-9}),
                    adapter=adapter)
              for adapter, severity in (
                  (None, "info"), (LORA, "warning"), (Adapter(kind="lora", trainable=["lm_head"]), "info"))),
            fires("warning", where={"tokens": [6, 7]}, tokens=learned(3, 6, 7), adapter=LORA,
                  head_rows=head({6: 0.03, 7: 0.03}, {6: 1, 7: 1})),
        ],
        [
            resembles("The row of padding, which is no target.", adapter=LORA, tokens=learned(0, 3),
                      head_rows=head({0: 0.0})),
            resembles("A copy of the row of a token that the data never asks for.", adapter=LORA,
                      tokens=learned(3, 6), head_rows=head({6: 0.03}, {6: 1})),
            *(quiet(tokens=tokens, head_rows=one, model=model, adapter=LORA) for tokens, one, model in (
                (learned(3, 6), head({}), None), (learned(3), head({6: 0.0}), None),
                (learned(3, 6), head({6: 0.0}), TIED), (learned(3, 25), head({}), None),
            )),
        ],
    ),
    "untrained-token-embeddings": (
        [
            fires("error", "6 <|im_start|>", "1e-08", "99.7%", "10 of 10 sequences", "float16",
                  where={"tokens": [6], "rows": [6], "tensor": "model.embed_tokens.weight"}, evidence={
                      "row_rms": 1e-8, "ratio": pytest.approx(5e-7), "first_positions": 10, "lost_in_cast": 0.997},
                  precision=HALF, tokens=use({6: 10, 5: 3}), rows=rows({6: 1e-8}, lost={6: 0.997})),
            *(fires(severity, tokens=use({6: 1}), rows=rows({6: size}), precision=precision)
              for size, precision, severity in (
                  (1e-5, HALF, "error"), (1e-5, BRAIN, "warning"), (1e-5, None, "warning"), (0.0, BRAIN, "error"),
                  (0.0, None, "error"))),
            *(fires("info", tokens=use({5: 1}, {6: 9}), rows=rows({6: size}), precision=HALF) for size in (0.0, 1e-8)),
            fires("error", tokens=use({6: 1}), rows=rows({6: 0.02}, lost={6: 0.9}), precision=HALF),  # not even short
            fires("error", tokens=use({6: 1}, pad_id=6), rows=rows({6: 0.0}), precision=HALF),  # padding that is seen
            *(fires(severity, "copies", where={"tokens": [6]}, tokens=use({6: 10}, {3: 5}), precision=HALF,
                    rows=rows({}, twins={6: 1, 9: 1}), adapter=adapter)
              for adapter, severity in ((None, "info"), (Adapter(kind="lora"), "warning"))),
        ],
        [
            resembles("A row at a tenth of the usual length is trained.", tokens=use({6: 10}), rows=rows({6: 0.002}),
                      precision=HALF),
            resembles("An untrained row that the data does not use.", tokens=use({5: 10}), rows=rows({6: 0.0}),
                      precision=HALF),
            *(quiet(why, tokens=tokens, rows=one, precision=precision) for why, tokens, one in (
                ("", use({6: 10}), rows({})),
                ("not used", use({5: 10}), rows({6: 0.0})),
                ("", use({6: 10}), rows({6: 0.002})),
                ("", use({6: 10}), rows({6: 1.0})),
                ("padding at the end", use({5: 10}, {6: 3}, pad_id=6), rows({6: 0.0})),
                ("masked", replace(use({6: 9}), counts=np.array([0])), rows({6: 0.0})),
                ("outside of the matrix: another cause", use({500: 10}), rows({})),
                ("not finite: another cause", use({6: 10}), rows({6: NAN})),
            ) for precision in (HALF, BRAIN, None)),
            quiet("a matrix that is mostly empty", tokens=use({19: 10}), rows=rows(dict.fromkeys(range(19), 0.0)),
                  precision=HALF),
            quiet("a copy that is padding", tokens=use({3: 10}, {0: 4}, pad_id=0), precision=HALF,
                  rows=rows({}, twins={0: 1, 9: 1})),
            quiet("a copy that pads on the left", tokens=use({3: 5, 0: 5}, pad_id=0), precision=HALF,
                  rows=rows({}, twins={0: 1, 9: 1}), adapter=Adapter(kind="lora")),
        ],
    ),
    "vision-tower-fp16": (
        [
            *(fires("info", at="args.json: fp16", precision=Precision(compute="float16", source="args.json: fp16"),
                    model=Model(family=family), training=Training(model_name=name))
              for family, name in (
                  ("llava", None), ("qwen2_vl", None), ("qwen2_5_vl", None), ("minicpmv", None), ("mllama", None),
                  (None, "openbmb/MiniCPM-V-2_6"), (None, "Qwen/Qwen2.5-VL-3B-Instruct"))),
            fires("warning", where={"tensor": TOWER}, evidence={"row": 7}, precision=HALF, weights=reaches(1e5)),
        ],
        [
            resembles("The row would overflow, and its tower computes in float32.", weights=reaches(1e5),
                      precision=Precision(compute="float16", float32_modules=["vpm"]), model=Model(family="minicpmv")),
            quiet("within the range", precision=HALF, weights=reaches(6e4)),
            quiet(precision=BRAIN, weights=reaches(1e5)),
            *(quiet(precision=precision, model=Model(family=family), training=Training(model_name=name))
              for precision, family, name in (
                  (BRAIN, "llava", None), (HALF, "llama", "meta-llama/Llama-2-7b"), (HALF, None, None),
                  (HALF, "qwen2", "/data/evl/qwen"))),
        ],
    ),
    "weight-tying-broken": (
        [
            fires("warning", where={"tensor": "lm_head.weight"}, model=TIED, weights=pair(0.02, 0.05)),
            fires("warning", evidence={"trained": ["embed_tokens", "lm_head"]}, model=TIED,
                  adapter=Adapter(kind="lora", trainable=["embed_tokens", "lm_head"])),
            fires("warning", evidence={"trained": ["lm_head"]}, model=TIED,
                  adapter=Adapter(kind="lora", target_modules=["q_proj", "lm_head"])),
        ],
        [
            resembles("Two matrices that were never one.", model=Model(tied=False), weights=pair(0.02, 0.05),
                      adapter=Adapter(kind="lora", trainable=["lm_head"])),
            resembles("Both are stored, and they are the same.", model=TIED, weights=pair(0.02, 0.02), adapter=LORA),
            quiet("nobody said so", model=Model(), weights=pair(0.02, 0.05)),
            quiet(model=TIED, weights=pair(0.02, 0.02)),
            quiet(model=TIED, weights=pair(0.02, None),
                  adapter=Adapter(kind="lora", target_modules=["q_proj", "v_proj"])),
            quiet(model=TIED, adapter=Adapter(kind="lora", target_modules=["all-linear"])),
        ],
    ),
}  # fmt: skip
