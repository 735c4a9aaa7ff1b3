"""What is done to a healthy training at some step, and to which programs.

A fault is a function that changes a `Training`; its first docstring line is its row. What it breaks it breaks for real:
a NaN comes about or a bit is flipped, nothing writes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from detection.language import VOCABULARY, generator
from detection.training import Batch, Training
from torch import Tensor, nn
from torch.optim import AdamW


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`plant(training)` is called between two steps; `programs` are those that it is planted in."""

    name: str
    plant: Callable[[Training], None]
    programs: Sequence[str]

    @property
    def title(self) -> str:
        return (self.plant.__doc__ or "").split("\n")[0]


FAULTS: dict[str, Fault] = {}
TEXT = ("gpt", "heavy-tails")
ANY = ("gpt", "heavy-tails", "classifier", "autoencoder")


def planted_in(*names: str) -> Callable[[Callable[[Training], None]], Callable[[Training], None]]:
    def add(plant: Callable[[Training], None]) -> Callable[[Training], None]:
        name = plant.__name__.replace("_", "-")
        FAULTS[name] = Fault(name=name, plant=plant, programs=names)
        return plant

    return add


def _faster(training: Training, factor: float) -> None:
    before, since = training.rate, training.done
    training.rate = lambda step: before(step) * (factor if step > since else 1.0)


def _middle(training: Training) -> list[nn.Parameter]:
    """The matrices of the later half of the model, without its last tensor."""
    matrices = [p for p in training.model.parameters() if p.requires_grad and p.dim() > 1]
    return matrices[len(matrices) // 2 : -1] or matrices[:1]


@planted_in(*ANY)
def rate_30(training: Training) -> None:
    """Learning rate x30"""
    _faster(training, 30)


@planted_in(*ANY)
def rate_10(training: Training) -> None:
    """Learning rate x10"""
    _faster(training, 10)


@planted_in(*ANY)
def rate_zero(training: Training) -> None:
    """Learning rate 0 from here on"""
    _faster(training, 0.0)


def _noise(batch: Batch, step: int) -> Batch:
    """The same shapes, filled at random: words, pixels, labels."""
    g = generator(77, step)
    out = dict(batch)
    for name, tensor in batch.items():
        if tensor.is_floating_point() and tensor.dim():
            out[name] = torch.rand(tensor.shape, generator=g) * tensor.abs().max()
        elif name == "labels" and "input_ids" not in batch:
            out[name] = torch.randint(int(tensor.max()) + 1, tensor.shape, generator=g)
    if "input_ids" in batch:
        words = torch.randint(VOCABULARY, batch["input_ids"].shape, generator=g)
        out |= {"input_ids": words, "labels": words.masked_fill(batch["labels"] == -100, -100)}
    return out


def _spoil_next(training: Training, steps: float, spoil: Callable[[Batch, int], Batch]) -> None:
    since = training.done
    training.spoil = lambda batch, step: spoil(batch, step) if since < step <= since + steps else batch


@planted_in(*ANY)
def bad_batch(training: Training) -> None:
    """One batch of random words or pixels"""
    _spoil_next(training, 1, _noise)


@planted_in(*ANY)
def bad_batches(training: Training) -> None:
    """50 batches of random words or pixels"""
    _spoil_next(training, 50, _noise)


@planted_in("gpt", "heavy-tails", "classifier", "experts")
def shuffled_labels(training: Training) -> None:
    """Labels shuffled within the batch"""

    def spoil(batch: Batch, step: int) -> Batch:
        labels = batch["labels"]
        order = torch.randperm(labels.numel(), generator=generator(78, step))
        return batch | {"labels": labels.flatten()[order].view_as(labels)}

    _spoil_next(training, float("inf"), spoil)


@planted_in("gpt", "heavy-tails")
def shifted_labels(training: Training) -> None:
    """Labels shifted by one position more"""
    _spoil_next(training, float("inf"), lambda batch, _: batch | {"labels": batch["labels"].roll(-1, dims=1)})


@planted_in("autoencoder", "experts", "several-epochs")
def unscaled_inputs(training: Training) -> None:
    """Inputs x100, as without normalisation"""

    def spoil(batch: Batch, _step: int) -> Batch:
        return {k: 100 * v if v.is_floating_point() and v.dim() > 1 else v for k, v in batch.items()}

    _spoil_next(training, float("inf"), spoil)


@planted_in(*ANY)
def same_batch(training: Training) -> None:
    """The same batch again and again"""
    draw, since = training.draw, training.done
    training.draw = lambda step: draw(min(step, since * training.micro_batches + training.micro_batches))


@planted_in("gpt", "heavy-tails", "summed")
def ignored_labels(training: Training) -> None:
    """All labels are -100"""
    _spoil_next(training, float("inf"), lambda b, _: b | {"labels": torch.full_like(b["labels"], -100)})


@planted_in(*ANY)
def kept_gradients(training: Training) -> None:
    """zero_grad is not called"""
    training.zeroes_gradients = False


@planted_in("accumulation", "accumulation-llama")
def undivided(training: Training) -> None:
    """Loss not divided by micro-batches"""
    training.divides_by_micro_batches = False


@planted_in(*ANY)
def flipped_gradients(training: Training) -> None:
    """Gradients of the later half flipped"""
    for p in _middle(training):
        p.register_hook(lambda gradient: -gradient)


@planted_in("gpt", "heavy-tails", "classifier", "autoencoder")
def zeroed_weights(training: Training) -> None:
    """Two matrices overwritten with zeros"""
    with torch.no_grad():
        for p in _middle(training)[:2]:
            p.zero_()


@planted_in(*ANY)
def frozen_half(training: Training) -> None:
    """The later half frozen by mistake"""
    for p in _middle(training):
        p.requires_grad_(requires_grad=False)


@planted_in(*ANY)
def lost_moments(training: Training) -> None:
    """State of the optimizer lost"""
    training.optimizer.state.clear()


@planted_in("gpt", "heavy-tails", "contrastive", "experts")
def large_eps(training: Training) -> None:
    """Adam's eps becomes 1"""
    for group in training.optimizer.param_groups:
        group["eps"] = 1.0


@planted_in("gpt", "heavy-tails", "autoencoder")
def float16_weights(training: Training) -> None:
    """Weights, moments in float16: eps is 0"""
    _cast(training, torch.float16)


@planted_in("gpt", "heavy-tails", "contrastive", "experts")
def heavy_decay(training: Training) -> None:
    """Weight decay becomes 100"""
    for group in training.optimizer.param_groups:
        group["weight_decay"] = 100.0


@planted_in("gentle", "gentle-gpt")
def bfloat16_weights(training: Training) -> None:
    """Weights in bfloat16 at a rate of 1e-6"""
    _cast(training, torch.bfloat16)


def _cast(training: Training, dtype: torch.dtype) -> None:
    training.model.to(dtype)
    for state in training.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim():
                state[name] = value.to(dtype)
    loss = training.loss

    def cast(model: nn.Module, batch: Batch) -> Tensor:
        return loss(model, {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()})

    training.loss = cast


@planted_in("gpt", "heavy-tails", "autoencoder")
def silenced(training: Training) -> None:
    """Gradients are clipped to a norm of 1e-9"""
    training.clip = 1e-9


@planted_in("float16", "float16-llama")
def scale_collapse(training: Training) -> None:
    """Float16: gradients overflow at any scale"""
    loss = training.loss
    training.loss = lambda model, batch: 3e7 * loss(model, batch)


@planted_in("float16", "float16-llama")
def overflow(training: Training) -> None:
    """Float16: a matrix x100,000"""
    with torch.no_grad():
        _middle(training)[0].mul_(1e5)


@planted_in(*TEXT, "fine-tune")
def embedding_row(training: Training) -> None:
    """One row of the embedding x1000"""
    assert training.embedding is not None
    with torch.no_grad():
        training.embedding.weight[20] *= 1000


@planted_in(*ANY)
def bit_flip(training: Training) -> None:
    """Highest exponent bit of a weight flips"""
    _flip(_middle(training)[0], 30)


@planted_in(*ANY)
def low_bit_flip(training: Training) -> None:
    """Lower exponent bit flips: a weight x256"""
    _flip(_middle(training)[0], 26)


@torch.no_grad()
def _flip(p: Tensor, bit: int) -> None:
    """Turn on one bit of the largest element in which it is off."""
    bits = p.data.view(torch.int32).view(-1)
    off = (bits & (1 << bit)) == 0
    bits[p.view(-1).abs().masked_fill(~off, -1).argmax()] |= 1 << bit


@planted_in(*TEXT)
def sharp_attention(training: Training) -> None:
    """Queries and keys x12"""
    with torch.no_grad():
        for name, p in training.model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj")):
                p.mul_(12)
            elif "c_attn.weight" in name:
                p[:, : 2 * p.shape[0]].mul_(12)


@planted_in("gpt", "heavy-tails", "classifier")
def stale_parameters(training: Training) -> None:
    """Optimizer holds stale tensors"""
    replaced = {id(p) for p in _middle(training)}
    for module in training.model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if id(p) in replaced:
                setattr(module, name, nn.Parameter(p.detach().clone()))


@planted_in("lora", "preferences")
def frozen_decayed(training: Training) -> None:
    """Frozen base in the optimizer, decayed"""
    frozen = [p for p in training.model.parameters() if not p.requires_grad]
    training.optimizer.add_param_group({"params": frozen, "weight_decay": 0.1})
    step = training.optimizer.step

    def with_zeros() -> None:
        for p in frozen:
            p.grad = torch.zeros_like(p)
        step()

    training.optimizer.step = with_zeros


@planted_in("replicas")
def replica_drift(training: Training) -> None:
    """One row of the second copy drifts"""
    assert training.replica is not None
    with torch.no_grad():
        next(training.replica.parameters())[0] += 1e-3


@planted_in("gpt", "classifier", "autoencoder")
def guarded_log(training: Training) -> None:
    """Guarded logarithm: NaN backward"""
    loss = training.loss

    def with_term(model: nn.Module, batch: Batch) -> Tensor:
        weight = next(iter(model.parameters()))
        return loss(model, batch) + 1e-3 * torch.where(weight > 0, weight, weight * 0).log().clamp(min=-10).mean()

    training.loss = with_term


@planted_in("contrastive", "experts", "policy-gradient")
def second_stage(training: Training) -> None:
    """A new optimizer at ten times the rate"""
    training.optimizer = AdamW([p for p in training.model.parameters() if p.requires_grad], lr=1e-3)
    _faster(training, 10)
