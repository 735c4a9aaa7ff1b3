"""What the first bad number says for each cause, and what of another cause it may be taken for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tests.causes.parts import BAD, BRAIN, H100, INF, NAN, labels, origin, rows, scanned, series, tensor, use
from tests.causes.rows import Table, between, exactly, less, nothing, over, under

from finitune.facts import Attention, Batching, Model, Optimizer, Precision, Quantization, Training, Weights
from finitune.finding import Origin
from finitune.series import Series

PURE = Precision(compute="float16", parameters="float16", scaler="none")
BACKWARD, CAST = origin(phase="backward"), origin("aten._to_copy", "backward")
FLASH = Attention(implementation="flash_attention_2")
FALLING, CLIMB = series(4.0, 3.5, 3.2, 3.0, NAN), series(4.0, 3.0, 5.0, 20.0, 90.0, NAN)
OVERFLOW = origin("aten.mul", values="3 inf", peak=4e3)
ZERO_OVER_ZERO = origin("aten.nll_loss_forward", dtype="float32", values="1 nan", module="")


FLIPPED = scanned(tensor(peak=2.3e36, second=0.03))


def ready(bad: int, of: int = 40) -> dict[str, Any]:
    return {"bad": ["w", "v"][:bad], "tensors": of}


def mean(**more: Any) -> Origin:
    """A mean that the loop takes by hand: 0 / 0."""
    given = {"values": "1 nan", "peak": 0.0, "shape": [], "divisor": "the divisor is 0"}
    line = "train.py:15: loss = a / b.sum()"
    return origin("aten.div", dtype="float32", module=None, **{**given, "line": line, **more})


def loss_of_nothing(**more: Any) -> Origin:
    given: dict[str, Any] = {"values": "1 nan", "peak": 0.0, "shape": [], **more}
    return origin("aten.binary_cross_entropy_with_logits", dtype="float32", module=None, **given)


def divided(line: str, divisor: str | None = "1 of 1 elements of the divisor are 0", function: str = "step") -> Origin:
    line = f"rewards.py:43 in {function}: {line}"
    return origin("aten.div", "input", "float32", module=None, divisor=divisor, line=line)


ADVANTAGE_OF_ONE = "grpo.py:57 in group_advantages: return centred / (rewards.std(dim=1, keepdim=True) + eps)"


def ratio(line: str | None = "ppo.py:31: ratio = torch.exp(new - old)", **more: Any) -> Origin:
    return origin(**{"op": "aten.exp", "dtype": "float32", "module": None, "line": line, **more})


def sentinels(**more: Any) -> Origin:
    given = {"op": "aten.add", "dtype": "bfloat16", "values": "9 -inf", "peak": 3.3895e38}
    return origin(**{**given, "module": None, **more})


def own_sum(**more: Any) -> Origin:
    return origin(**{"op": "aten.sum", "module": None, "peak": 44992.0, **more})


def by_zero(**more: Any) -> Origin:
    return origin(**{"op": "aten.reciprocal", "phase": "backward", "module": None, "peak": 0.0, **more})


def computed(*samples: int) -> Origin:
    return origin("aten.div", "input", "float32", module=None, values="nan", rows=samples, shape=[4, 2])


def ctc(values: str) -> Origin:
    return origin("aten._ctc_loss", dtype="float32", module=None, values=values)


def damaged(nonfinite: int = 1, **more: Any) -> Weights:
    return scanned(tensor("x.weight", peak=0.1, rms=0.02), tensor(nonfinite=nonfinite, **more))


def at(phase: str, module: str = "a", dtype: str = "float32") -> Origin:
    op = "parameter" if phase == "parameter" else "FactoredAdam.step"
    return origin(op, phase, dtype, module=module, tensor="a.weight")


def started(*losses: float) -> Series:
    return Series(range(len(losses)), losses)


HUGE = tensor(shape=(1024, 1024), peak=1e30, rms=1e26)
SPREAD = tensor(shape=(64, 64), peak=0.9, rms=0.02)
SCALED = Precision(compute="float16", scaler="dynamic", initial_scale=65536.0, min_scale=1.0)
PADDED = Batching(pad_id=0, padded_rows=3, pads_attended=True, padding_side="left")
CRASH = {"symptom": "crash", "batch": [{"name": "input 0", "values": "9 nan, 0 inf", "sample": 2}]}
FOUR = Quantization(bits=4, compute_dtype="float16", compute_dtype_is_default=True)
SMOOTH = Training(label_smoothing=0.1)
ADVANTAGE = "advantage = (r - r.mean()) / r.std()"
SUM = origin("aten.sum", module=None)
HIGH = Optimizer(name="AdamW", lr=0.5)


CASES: Table = {
    "adam-eps-underflow-fp16": (
        [
            over(0, precision=PURE, optimizer=Optimizer(name="AdamW", eps=1e-8),
                 origin=at("parameter", dtype="float16")),
            over(6, precision=PURE, optimizer=Optimizer(name="HalfAdam"), origin=origin("aten.addcdiv", "optimizer")),
        ],
        [
            under(0, "An Adam of its own that divides in float32.", precision=PURE,
                  optimizer=Optimizer(name="HalfAdam"), origin=origin("aten.addcdiv", "optimizer", "float32")),
            under(0, "The forward fails on sound weights.",
                  precision=PURE, optimizer=Optimizer(name="AdamW", eps=1e-8), origin=origin("parameter")),
            under(0, "An eps that float16 holds.",
                  precision=PURE, optimizer=Optimizer(name="AdamW", eps=1e-4), origin=at("parameter", dtype="float16")),
        ],
    ),
    "all-labels-ignored": (
        [
            over(8, labels=labels(0, 0), origin=ZERO_OVER_ZERO),
            over(8, labels=labels(0, 0, 0), origin=ZERO_OVER_ZERO),
            over(4, labels=labels(0)),
            over(5, origin=mean(line="train.py:15 in forward: return (nll * keep).sum() / keep.sum()")),
            between(0, 5, origin=mean(line=None)),
            over(5, origin=loss_of_nothing()),
            over(5, labels=labels(9), origin=mean(line="(nll * keep).sum() / keep.sum()", divisor_by_batch=True)),
            over(5, origin=mean(line="train.py:43: return (logp * keep).sum(-1) / keep.sum(-1)", shape=[4], peak=60.0)),
        ],
        [
            less("Something else went bad first.", labels=labels(0, 0), origin=OVERFLOW),
            under(0, "One token has a target.", labels=labels(0, 0, 1), origin=ZERO_OVER_ZERO),
            under(0, "Some other mean.", labels=labels(48), origin=mean(divisor_by_batch=True)),
            exactly(0, "A loss that is not 0, divided by 0.", origin=mean(peak=3.0)),
            exactly(0, "A mean of no targets is bad in the forward.", origin=mean(line=None, phase="backward")),
            exactly(0, "No mean over the whole batch.", origin=mean(line="train.py:15: p = a / b.sum()", shape=[4])),
            exactly(0, "No loss of tokens.", origin=mean(line="train.py:9: a.sum(1) / b.sum(1)", shape=[4], peak=3.0)),
            exactly(0, "Pairs in a batch.", origin=mean(line="a.py:9: (pair * p).sum(1) / pair.sum(1)", shape=[4])),
            between(0, 6, "Weights of classes.", origin=mean(line="a.py:9: loss = (w * nll).sum() / weight.sum()")),
            exactly(0, "The variance of one.", origin=mean(line="a.py:9: v = c.square().sum() / (m.numel() - 1)")),
            exactly(0, "Nobody knows by what.", origin=mean(divisor=None)),
            exactly(0, "A weight of inf, times 0.", origin=loss_of_nothing(peak=math.inf)),
            exactly(0, "A loss per sample.", origin=loss_of_nothing(shape=[4])),
            exactly(0, "A quotient of the optimizer's own.", origin=mean(phase="optimizer")),
        ],
    ),
    "bad-data-sample": (
        [
            over(5, incident={}, origin=computed(2)),
            exactly(6, incident=CRASH),
            over(6, incident={}, origin=ctc("1 inf")),  # a target that cannot be aligned
        ],
        [
            under(0, "Every sample comes out bad.", incident={}, origin=computed(0, 1, 2, 3)),
            nothing("A batch without bad values.",
                    incident={**CRASH, "batch": [{"inputs": {"input 0": "float32 [8, 1]"}}]}),
            nothing("No crash, so its origin tells.", incident={**CRASH, "symptom": "nonfinite-loss"}),
            nothing("Log probabilities that are NaN.", incident={}, origin=ctc("1 nan")),
        ],
    ),
    "corrupt-checkpoint": (
        [
            over(7, weights=damaged(), origin=origin("parameter", "parameter", "float32", tensor="a.weight"),
                 loss=series(NAN)),
            over(4, weights=scanned(HUGE), origin=origin(dtype="float32"), loss=series(NAN)),
            # of 64 x 64 weights the peak is at most 64 times the rms
            over(0, weights=scanned(tensor("mlp.down_proj.weight", shape=(64, 64), peak=5e36, rms=8e34))),
            *(over(0, weights=scanned(tensor(nonfinite=1)), loss=one) for one in (series(NAN), series(NAN, NAN))),
            over(0, weights=scanned(tensor(nonfinite=3)), origin=at("parameter")),
        ],
        [
            less("It trained for steps before.", weights=damaged(), loss=FALLING),
            less("Gradients were finite before, and no loss is seen.", weights=damaged(), grad_norm=series(17.4, NAN)),
            *(under(0.1, "It trained for a step, so it came whole.", weights=scanned(tensor(nonfinite=1)), loss=one)
              for one in (series(2.0, NAN), series(2.0, 1.9, NAN))),
            under(0, "An update made it bad.", weights=scanned(tensor(nonfinite=3)), origin=at("optimizer")),
            under(0, "Every weight is sound.", weights=damaged(0, peak=0.1, rms=0.02), origin=OVERFLOW,
                  loss=series(NAN)),
            under(0, "A peak as weights have it.", weights=scanned(SPREAD), loss=series(NAN)),
        ],
    ),
    "cudnn-sdpa-bug": (
        [over(8, versions={"torch": "2.5.0"}, hardware=H100,
              origin=origin("aten._scaled_dot_product_cudnn_attention_backward", "backward", "bfloat16"))],
        [under(0, "Another operator fails on that card.", versions={"torch": "2.5.0"}, hardware=H100,
               origin=origin("aten.mul"))],
    ),
    "custom-loss-or-norm-fp16": (
        [
            exactly(9, origin=own_sum()),
            exactly(6, origin=own_sum(peak=None)),
            exactly(9, origin=own_sum(tensor="loss", shape=[], line="a.py:25 in forward: return (h * h).sum()")),
            exactly(9, origin=by_zero()),
            exactly(9, origin=by_zero(op="aten.div", peak=3.0, divisor="1 of 1 elements are 0")),
        ],
        [
            nothing("The model itself, which autocast looks after.", origin=own_sum(module="model.layers.3.mlp")),
            *(nothing("Another dtype holds it.", origin=own_sum(dtype=dtype)) for dtype in ("float32", "bfloat16")),
            nothing("No sum forward.", origin=own_sum(phase="backward")),
            nothing("No sum.", origin=own_sum(op="aten.div")),
            nothing("An encoder.", origin=own_sum(tensor="h", shape=[3, 9, 64], line="a.py:2 in forward: h = h * h")),
            nothing("float32 holds smaller squares.", origin=by_zero(dtype="float32")),
            nothing("No division by 0.", origin=by_zero(peak=0.1)),
        ],
    ),
    "flash-attention-bug": (
        [over(0, origin=origin("aten._flash_attention_backward", "backward", "bfloat16", module=None),
              attention=FLASH)],
        [under(0, "A product outside of the kernel.",
               origin=origin("aten.mm", "backward", "bfloat16", module=None), attention=FLASH)],
    ),
    "fp16-activation-overflow": (
        [
            over(4, origin=OVERFLOW, loss=FALLING),
            over(4, origin=OVERFLOW),
            over(4, origin=own_sum(op="aten.mul", tensor="h", shape=[3, 9, 64], line="a.py:2 in forward: h = h * h")),
        ],
        [
            *(under(0, "A dtype that reaches 3e38.", origin=origin(dtype=dtype, values="3 inf"))
              for dtype in ("float32", "bfloat16", "float64")),
            *(under(0, "Nothing was computed.", origin=origin(phase, phase)) for phase in ("parameter", "input")),
            under(0, "The backward overflows.", origin=CAST),
            less("The loss had climbed.", origin=OVERFLOW, loss=series(4.0, 3.0, 9.0, 60.0, NAN)),
        ],
    ),
    "fp16-backward-overflow": (
        [
            over(8, origin=origin("aten._to_copy", "backward", module="", peak=2.3e6)),  # goes in beyond float16
            over(0, origin=BACKWARD),
        ],
        [
            less("What goes in, float16 holds.", origin=origin("aten._to_copy", "backward", module="", peak=100.0)),
            under(0, "The forward overflows.", origin=origin()),
        ],
    ),
    "fully-masked-attention-rows": (
        [
            over(5, origin=origin("aten._softmax", values="16 nan in rows 0", padding=True)),
            over(5, origin=origin("aten.sub", values="16 nan, 8 -inf", module="layer.0.self_attn")),
            over(5, origin=origin("aten.div", values="16 nan", module="attention.self", divisor="1 of 9 are 0")),
        ],
        [
            under(0, "No softmax.", origin=origin()),
            under(0, "A norm in an adapter of attention.",
                  origin=origin("aten.div", values="24 nan", module="h.0.attn.c_attn", divisor="1 of 1 elements is 0")),
            under(0, "Nothing was masked.", origin=origin("aten.sub", values="16 nan", module="layer.0.self_attn")),
            under(0, "No attention.", origin=origin("aten.sub", values="16 nan, 8 -inf", module="layer.0.mlp")),
            under(0, "A log_softmax weighs no values: the modes of a mixture, of which none is left.",
                  origin=origin("aten._log_softmax", values="3 nan in rows 0")),
            under(1, "Real tokens see themselves.",
                  origin=origin("aten._softmax", values="16 nan in rows 0", padding=False)),
        ],
    ),
    "hardware-fault-sdc": (
        [
            over(6, repeats=False, incident=ready(1)),  # one bad tensor of many
            over(5, repeats=False, incident=ready(2)),
            over(0, repeats=False, incident=ready(1, 9)),
            exactly(7, repeats=False, incident=ready(2), loss=FALLING),  # nothing announces the step
            over(5, repeats=True, incident={"step": 20}, weights=FLIPPED),
            over(5, incident={"step": 20}, weights=FLIPPED),  # every number of the step is finite
        ],
        [
            less("Two tensors are bad.", repeats=False, incident=ready(2)),
            exactly(6, "The loss announces it.", repeats=False, incident=ready(2), loss=CLIMB),
            under(0, "The step repeats.", repeats=True, incident=ready(1)),
            under(0, "The step repeats.", repeats=True, incident={}),
            under(0, "The weights came so.", repeats=True, incident={"step": 1}, weights=FLIPPED),
            nothing("Finite numbers, and no weight is odd.", incident={"step": 20}, weights=scanned(tensor())),
        ],
    ),
    "label-smoothing-fp16-sum": (
        [over(0, training=SMOOTH, origin=SUM)],
        [
            under(0, "Nothing is smoothed.", training=Training(label_smoothing=0.0), origin=SUM),
            nothing("Nobody said so.", training=Training(), origin=SUM),
        ],
    ),
    "loss-scale-exhaustion": (
        [over(0, precision=replace(SCALED, initial_scale=16.0), loss_scale=series(4.0, 2.0, 1.0))],
        [
            under(0, "A scale with room.", precision=replace(SCALED, scale_window=1000),
                  loss_scale=series(4.0, 2.0, 1.0)),
            nothing("The window was not told.", precision=SCALED, loss_scale=series(4.0, 2.0, 1.0)),
        ],
    ),
    "lr-schedule-mismatch": (
        [
            over(5, optimizer=Optimizer(lr=1e-5), lr=series(0.0, NAN), symptoms=BAD),
            over(8, optimizer=Optimizer(lr=1e-5), lr=series(0.0, NAN), symptoms=BAD, origin=at("optimizer")),
            over(8, optimizer=Optimizer(lr=1e-5), lr=series(1e-5, -1e-7), symptoms=BAD,
                 origin=origin("aten.sqrt", "optimizer")),
            over(8, optimizer=Optimizer(lr=1e-5), lr=series(1e-5, -1e-7), symptoms={"divergence"}),
            over(8, optimizer=Optimizer(lr=1e-5), lr=series(1e-5), symptoms={"crash"},
                 incident={"symptom": "crash", "batch": [{"learning_rate": "-1e-7+1e-8j", "optimizer": "SGD"}]}),
        ],
        [
            under(0, "The rate was reached.", optimizer=Optimizer(lr=1e-5), lr=series(0.0, 1e-5), symptoms=set()),
            under(0, "A step size of the gradients.", optimizer=Optimizer(lr=1e-5), lr=series(0.0, NAN), symptoms=BAD,
                  origin=origin("aten.sqrt", "optimizer")),
            under(0, "A low rate breaks nothing.", optimizer=Optimizer(lr=1e-5), lr=series(0.0, 1e-7), symptoms=BAD),
        ],
    ),
    "lr-too-high": (
        [
            exactly(6, loss=started(2.0, 1.9, 2.1, 2.0, 3.0, 9.0)),
            exactly(3, loss=started(2.0, 1.9, 2.1, 2.0, 3.0, 5.0)),
            exactly(6, loss=Series([10, 20, 30], [2.0, 3.0, 9.0])),  # a mean over ten steps each
            over(2, loss=CLIMB),
            over(5, loss=series(6.27, NAN), optimizer=Optimizer(lr=3.0)),  # each weight moves by 150 times its size
            over(0, loss=series(2.0, INF), optimizer=HIGH, incident={"step": 2}),
        ],
        [
            under(0, "A loss that falls.", loss=started(4.0, 3.0, 2.0)),
            *(under(0, "It fell, or had no time to climb.", loss=one) for one in (FALLING, series(NAN),
                    series(4.0, NAN))),
            exactly(-6, "The second step.", loss=Series([1, 2], [1e9, NAN])),
            exactly(0, "A row that stands for several steps.", loss=Series([5, 10], [1e9, NAN])),
            exactly(0, "Batches differ as much.", loss=started(3.9, 22.7, 3.7, 11.6, 8.9, 9.9)),
            exactly(0, "Batches differ as much.", loss=started(4.4, 16.7, 8.7)),
            # as GRPO logs it in a sound run: no multiple of a value about zero is a climb
            *(exactly(0, "Policy gradients about zero.", loss=started(*losses)) for losses in (
                (-0.1, -5.6e-6, 8.4e-6), (0.0, 4e-9, 1.6e-5, 3e-3), (0.4, -0.2, 0.9))),
            under(0, "Prodigy finds its own rate.", loss=series(6.27, NAN),
                  optimizer=Optimizer(lr=3.0, name="prodigy")),
            under(0, "A usual rate.", loss=series(6.27, NAN), optimizer=Optimizer(lr=2e-5)),
            under(-5, "No update had been taken.", loss=series(INF), optimizer=HIGH,
                  incident={"step": 1, "last_good": 0}),
        ],
    ),
    "mask-sentinel-overflow": (
        [
            over(6, origin=sentinels()),
            over(6, origin=sentinels(dtype="float16", peak=65504.0)),
            over(6, origin=sentinels(dtype="float32", peak=3.4028e38)),
            over(6, origin=sentinels(dtype="float32", peak=1.0014e38)),  # 1e38 in bfloat16
            over(6, origin=sentinels(dtype="float16", peak=6e4)),
        ],
        [
            under(6, "Numbers that are no sentinel.", origin=sentinels(peak=100.0)),
            under(0.1, "A state that grows by a factor.",
                  origin=sentinels(dtype="float32", op="aten.mul", peak=3.27e38)),
            *(under(0, "Another overflow.", origin=sentinels(**more)) for more in (
                {"values": "9 nan"}, {"values": "9 inf, 1 -inf"}, {"op": "aten.mm"}, {"phase": "backward"})),
        ],
    ),
    "norm-eps-underflow-fp16": (
        [over(0, model=Model(norm_eps=1e-8), origin=origin("aten.rsqrt", module="norm"))],
        [under(0, "An eps that float16 holds.", model=Model(norm_eps=1e-5),
               origin=origin("aten.rsqrt", module="norm"))],
    ),
    "normal-scaler-warmup": (
        [over(0, loss_scale=series(65536, 32768), origin=BACKWARD)],
        [
            under(0, "The scale collapsed.", loss_scale=series(65536, 1), origin=BACKWARD),
            under(0, "The forward failed.", loss_scale=series(65536), origin=origin()),
        ],
    ),
    "quant-compute-dtype": (
        [over(8, quantization=FOUR, origin=origin(), precision=BRAIN)],
        [under(0, "bfloat16 made the bad value.", quantization=FOUR, origin=origin(dtype="bfloat16"), precision=BRAIN)],
    ),
    "rl-group-std-zero": (
        [
            over(0, training=Training(generations=1), symptoms=BAD),
            over(6, origin=divided(ADVANTAGE)),
            over(6, origin=divided("adv = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)")),
            over(6, origin=divided("return centred / grouped.std(1)", function="group_advantages")),
            over(6, origin=origin("aten.std", "input", "float32", module=None, values="8 nan", line=ADVANTAGE_OF_ONE)),
        ],
        [
            under(0, "A group of eight.", training=Training(generations=8), symptoms=BAD),
            between(0, 6, "The spread of something else.", origin=divided("return (y - y.mean()) / y.std()")),
            between(0, 6, "What it is called tells nothing.", origin=divided("return x / x.std(1)", function="scaled")),
            nothing("A share.", origin=divided("share = weight / weight.sum()")),
            nothing("Nobody knows by what.", origin=divided(ADVANTAGE, divisor=None)),
        ],
    ),
    "rl-ratio-or-kl-overflow": (
        [
            exactly(9, origin=ratio()),
            exactly(9, origin=ratio("x.py:1 in f: kl = (ref_logps - logps).exp() - 1")),
            exactly(9, origin=ratio("x.py:7: r = torch.exp(logprobs - old_logprobs)")),
            exactly(9, origin=ratio("x.py:9: k3 = torch.exp(gap) - gap - 1")),
        ],
        [
            nothing("An exponential of something else.", origin=ratio("train.py:3: w = torch.exp(student - teacher)")),
            nothing("No line.", origin=ratio(None)),
            nothing("No exponential.", origin=ratio(op="aten.div")),
            nothing("Not forward.", origin=ratio(phase="backward")),
        ],
    ),
    "uninitialised-weights": (
        [over(0, weights=scanned(tensor(peak=1e9)), origin=at("parameter"))],
        [
            under(0, "Sound weights.", weights=scanned(tensor(peak=0.1))),
            nothing("It fails elsewhere.", weights=scanned(tensor(peak=1e9)), origin=origin()),
        ],
    ),
    "unmasked-padding": (
        [exactly(9, batching=PADDED, origin=origin("aten._to_copy", "backward", padding=True))],
        [
            less("It fails at real tokens.", batching=PADDED,
                 origin=origin("aten._to_copy", "backward", padding=False)),
            under(0, "On the right no real token sees it.",
                  batching=replace(PADDED, padding_side="right"),
                  origin=origin("aten._to_copy", "backward", padding=True)),
            under(0, "It is masked.", batching=Batching(padding_side="left", pads_attended=False),
                  origin=origin("aten._to_copy", "backward", padding=True)),
        ],
    ),
    "untrained-token-embeddings": (
        [
            over(7, tokens=use({3: 1}), rows=rows({3: 1e-8}), origin=CAST),
            over(4, tokens=use({3: 1}), rows=rows({3: 0.0})),
        ],
        [
            less("It begins no sequence.", tokens=use({5: 1}, {3: 1}), rows=rows({3: 1e-8}), origin=CAST),
            less("The forward failed.", tokens=use({3: 1}), rows=rows({3: 1e-8}), origin=origin(dtype="float32")),
            under(0, "Rows of usual length.", tokens=use({3: 1}), rows=rows({}), origin=CAST),
            under(0, "A tenth of it is trained.", tokens=use({3: 1}), rows=rows({3: 0.002}), origin=CAST),
        ],
    ),
    "vision-tower-fp16": (
        [
            over(5, origin=origin("aten.addmm", module="base_model.model.vpm.encoder.layers.1.mlp.fc1")),
            over(0, origin=origin(module="vpm.encoder.layers.26.mlp")),
        ],
        [
            under(-5, "The language model.", origin=origin("aten.addmm", module="model.layers.0.self_attn")),
            under(0, "The language model.", origin=origin(module="model.layers.3.mlp")),
            under(-5, "A weight that is bad.",
                  origin=origin("aten.addmm", "parameter", module="vision_tower.layers.0")),
            under(-5, "bfloat16 holds it.", origin=origin("aten.addmm", dtype="bfloat16", module="visual.blocks.0")),
        ],
    ),
}  # fmt: skip
