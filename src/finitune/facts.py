"""Facts: what is known without training, each group under the parameter name that chapters use.

A group that is None was not asked. Arrays are numpy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from finitune.naming import ActivationPeak, Reach

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_FLOAT16 = 65504.0
MIN_SUBNORMAL_FLOAT16 = 2.0**-24

DEFAULT_SCALE_POWER = 16
DEFAULT_LOSS_SCALE = 2.0**DEFAULT_SCALE_POWER
"""Where torch.amp.GradScaler and DeepSpeed begin."""

NEVER_TRAINED = 1e-2
"""Row rms over median rms; trained rows of released models lie within a factor of ten of each other.

In 8 layers of Llama's shape rows at 1/20 still train at loss scale 2**10, at 1/2000 not.
"""

OUTLYING = 10.0
"""Peak over rms of a tensor. Of 10^11 normal draws the largest is at 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How numbers are held, dtypes as torch spells them; `cpu` is True when the run stays on the CPU."""

    compute: str | None = None
    parameters: str | None = None
    scaler: str | None = None
    """"dynamic", "static" or "none"."""
    initial_scale: float | None = None
    hysteresis: int | None = None
    min_scale: float | None = None
    scale_window: int | None = None
    """Finite steps after which a dynamic scale is raised again."""
    requested_by: str | None = None
    """The framework whose rules turn the request into dtypes: "transformers", "deepspeed", "accelerate", "ludwig"..."""
    casts_module: bool | None = None  # the trainer casts the whole model, however it was loaded
    cpu: bool | None = None
    full_eval: str | None = None  # the dtype to which the whole model is cast for evaluation
    float32_modules: Sequence[str] | None = None
    """Modules that compute in float32 whatever the rest does."""
    source: str | None = None  # file and key, or the object, that says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The architecture, as `config.json` or the live module says it."""

    family: str | None = None
    path: str | None = None
    vocabulary: int | None = None
    hidden: int | None = None
    layers: int | None = None
    norm_eps: float | None = None
    rope_theta: float | None = None
    max_positions: int | None = None
    tied: bool | None = None
    dtype: str | None = None
    """The dtype in which the weights lie on disk or in memory."""
    experts: int | None = None
    experts_per_token: int | None = None
    renormalised: bool | None = None
    """The weights of the experts that a token takes are made to add up to 1."""
    trainable: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUse:
    """Which token ids occur in the data; `ids`, `counts` and `first` have one entry per distinct id."""

    ids: Ints
    counts: Ints
    first: Ints
    """How many sequences begin with the id (position 0, padding included)."""
    sequences: int
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    pad_id: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRows:
    """Root mean square of rows of the input embedding, or of the output head; one entry per id."""

    tensor: str
    ids: Ints
    rms: Floats
    median_rms: float  # over all rows of the matrix, the yardstick
    lost_in_cast: Floats
    """Fraction [0, 1] of the row's non-zero elements that become zero in the compute dtype."""
    dtype: str
    file: str | None = None
    twins: Ints | None = None  # how many other rows are the same to the last bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Supervised targets per sequence, after truncation; index i is row i of the data."""

    supervised: Ints
    source: str | None = None
    row_lines: Ints | None = None  # the line of each row in the file, from 1
    whole: Ints | None = None  # the targets before truncation
    lengths: Ints | None = None  # tokens before truncation
    end_tokens: Mapping[str, int] | None = None  # whole `rows`, those with an end `held`, and `learned`


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorScan:
    """One weight tensor, read once. `peak`, `second` (the largest but one) and `rms` are over finite elements.

    `peak` and the counts are exact; the rms of a tensor on disk with more than 10^5 elements is an estimate from a
    sample, within a few percent where they are about normal.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    nonfinite: int
    peak: float
    rms: float
    file: str | None = None
    overflow: int = 0  # elements beyond the largest finite value of the compute dtype
    underflow: int = 0
    """Elements that are not zero and become zero in the compute dtype; estimated in the same way as the rms."""
    first_nonfinite: Sequence[int] | None = None
    """Index of the first non-finite element."""
    second: float | None = None
    lone_nan: float | None = None  # of one element: what it is with the upper bit of its exponent the other way

    @property
    def outlying(self) -> bool:
        """Some elements stand far out; outlier activations come from such weights."""
        return self.peak > OUTLYING * self.rms


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Every tensor of the model, and what was wrong with the files themselves."""

    tensors: Sequence[TensorScan]
    problems: Sequence[str] = ()
    reaches: Sequence[Reach] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What tokens that stand alone reach, in float32: exact at the first token of a sequence, an estimate for pads."""

    first: Sequence[ActivationPeak]
    """Over tokens that begin sequences."""
    padding: Sequence[ActivationPeak]
    """Of the token that pads, where rows are padded."""
    ids: Ints
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Hyper-parameters of the update; `lr` is the largest over groups and over the schedule."""

    name: str | None = None
    lr: float | None = None
    eps: float | None = None
    betas: Sequence[float] | None = None
    weight_decay: float | None = None
    warmup_steps: int | None = None
    warmup_ratio: float | None = None
    clip: float | None = None
    """Largest global gradient norm; 0 means that clipping is switched off."""
    batch: int | None = None
    """Sequences per device and micro-step."""
    clips_scaled: bool | None = None  # while gradients are still multiplied by the loss scale
    accumulation: int | None = None  # micro-steps per optimizer step
    global_batch: int | None = None
    """Sequences per optimizer step over all devices, where a file says so: the product of those two and the devices."""
    schedule: str | None = None
    """Of the learning rate: "linear", "cosine", "constant"..."""
    max_steps: int | None = None
    schedule_steps: int | None = None
    """Steps after which the schedule has ended, where it has a setting of its own (DeepSpeed)."""
    epochs: float | None = None
    lora: bool | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The accelerator on which the run is meant to happen."""

    name: str
    bfloat16: bool
    emulated: bool = False  # `torch.cuda.is_bf16_supported()` says yes all the same
    memory_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the run is distributed over `world` processes and gradients travel. What the files leave out is None."""

    kind: str | None = None
    """"deepspeed", "fsdp", "ddp" or "none"."""
    zero_stage: int | None = None
    overlap_comm: bool | None = None
    """DeepSpeed's own default is true for stage 3 and false below."""
    reduce_bucket_size: int | None = None
    """Elements per bucket; DeepSpeed's own default is 5e8."""
    multi_rank_bucket_allreduce: bool | None = None
    check_grad_overflow: bool | None = None
    """bf16.check_grad_overflow; DeepSpeed's own default is false before 0.19.3 and true from there on."""
    offload_optimizer: str | None = None
    """"cpu", "nvme" or "none"."""
    offload_parameters: str | None = None
    communication_dtype: str | None = None
    grad_accum_dtype: str | None = None
    world: int | None = None
    nodes: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How frozen base weights are stored, and in which dtype their products are computed."""

    bits: int | None = None
    kind: str | None = None
    """"nf4", "fp4", "int8", "gptq", "awq"..."""
    compute_dtype: str | None = None
    """As torch spells it, the framework's default included: float16 in Ludwig, float32 in bitsandbytes itself."""
    compute_dtype_is_default: bool | None = None
    """True when no file says `compute_dtype`."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The adapter that is trained beside frozen weights; `kind` "none" is full fine-tuning, said in so many words."""

    kind: str | None = None
    """"lora", "dora", "adalora", "ia3", "none"..."""
    rank: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    rank_stabilised: bool | None = None
    """Scale alpha / sqrt(rank) instead of alpha / rank."""
    target_modules: Sequence[str] | None = None
    trainable: Sequence[str] | None = None
    """Modules of the base that are trained in full beside the adapter (`modules_to_save`)."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Which attention runs: "eager", "sdpa", "flash_attention_2", "xformers"..."""

    implementation: str
    dtype: str | None = None
    """Of scores and mask, where it is not that of the run's products."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How sequences become batches; `padding_side` is "left" or "right", `max_length` in tokens."""

    padding_side: str | None = None
    packing: bool | None = None
    max_length: int | None = None
    group_by_length: bool | None = None
    pad_token: str | None = None
    eos_token: str | None = None
    pad_id: int | None = None
    """Id that fills short rows, where the framework takes one of its own or a batch was seen."""
    padded_rows: int | None = None  # of a batch that was seen
    pads_attended: bool | None = None  # by the attention mask
    masks_end: bool | None = None  # the program ends texts with the token that its collator masks as padding
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Settings of the loop that are none of the groups above; `method` is "sft", "pt", "dpo", "ppo", "grpo"..."""

    framework: str | None = None
    """"transformers", "deepspeed", "ludwig", "axolotl", "llama-factory"..."""
    method: str | None = None
    model_name: str | None = None
    """The model as the configuration names it: a directory or a name on the hub."""
    chat_template: str | None = None
    """The template as the configuration names it."""
    gradient_checkpointing: bool | None = None
    reentrant: bool | None = None
    compiled: bool | None = None
    nan_filter: bool | None = None
    """`logging_nan_inf_filter`: whether the printed loss leaves out non-finite steps (transformers' default: true)."""
    response_template: str | None = None
    train_on_prompt: bool | None = None
    label_smoothing: float | None = None
    generations: int | None = None
    """Answers per prompt in reinforcement learning; their rewards are compared with one another."""
    teacher: str | None = None
    """A model whose probabilities are what is learned from, in distillation."""
    added_tokens: Sequence[str] | None = None  # to the vocabulary, by the program
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What the tokenizer of the model directory says; `size` is one more than the largest token id."""

    size: int | None = None
    pad_id: int | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    padding_side: str | None = None
    chat_template: bool | None = None
    template_markers: Sequence[str] | None = None
    """Special tokens that stand in the model's own chat template."""
    spare_pad: Mapping[str, int] | None = None
    """A token of the vocabulary that may pad and has no other task, and its id."""
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One setting that two inputs give differently; `values` and `sources` go together, the one that counts first."""

    key: str
    """The group and field of Facts, such as "precision.compute"."""
    values: Sequence[str]
    sources: Sequence[str]
    """File and key of each value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownKey:
    """A key that no release of its format has, or a value outside its choices; the framework ignores it or refuses."""

    file: str
    key: str
    near: Sequence[str] = ()
    """What may have been meant, the nearest first."""
    value: str | None = None
    """The value, where the key is known and its value is not one of the choices."""
    release: str | None = None
    """The release whose fields were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All groups; each attribute name is a parameter name for `foresee` and `weigh`."""

    precision: Precision | None = None
    model: Model | None = None
    tokens: TokenUse | None = None
    rows: EmbeddingRows | None = None
    head_rows: EmbeddingRows | None = None
    labels: Labels | None = None
    weights: Weights | None = None
    activations: Activations | None = None
    optimizer: Optimizer | None = None
    hardware: Hardware | None = None
    versions: Mapping[str, str] | None = None
    parallel: Parallel | None = None
    quantization: Quantization | None = None
    adapter: Adapter | None = None
    attention: Attention | None = None
    batching: Batching | None = None
    training: Training | None = None
    vocabulary: Vocabulary | None = None
    disagreements: Sequence[Disagreement] | None = None
    """Empty when configurations were read and agree."""
    unknown_keys: Sequence[UnknownKey] | None = None

    def by_name(self) -> dict[str, Any]:
        """Each group under the parameter name that chapters use; None was not asked."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def over(self, other: Facts) -> Facts:
        """These facts where they are known, `other`'s elsewhere."""
        return dataclasses.replace(other, **{k: v for k, v in self.by_name().items() if v is not None})
