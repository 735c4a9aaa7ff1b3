"""Attention that fails honestly: a kernel whose backward does without the maximum, and scores beyond float16."""

from __future__ import annotations

import contextlib

import torch
from torch.library import Library
from transformers import AttentionInterface

from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare, train
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import tiny

KERNEL, BAD, STEPS = "own-kernel", 4, 24


def scores(query, key, mask, scale):
    out = query.float() @ key.float().transpose(-1, -2) * scale
    return out if mask is None else out + mask.float()


def backward_without_maximum(gradient, query, key, value, mask, scale):
    """The probabilities are computed anew, as fused kernels do: exp(score) over its sum, beyond 88 inf/inf."""
    score = scores(query, key, mask, scale).exp()
    p = score / score.sum(-1, keepdim=True)
    to_value = p.transpose(-1, -2) @ gradient.float()
    to_p = gradient.float() @ value.float().transpose(-1, -2)
    to_score = p * (to_p - (to_p * p).sum(-1, keepdim=True)) * scale
    return to_score @ key.float(), to_score.transpose(-1, -2) @ query.float(), to_value


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, mask, scale):
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale = scale
        return (scores(query, key, mask, scale).softmax(-1) @ value.float()).to(query.dtype)

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, mask = ctx.saved_tensors
        made = backward_without_maximum(gradient, query, key, value, mask, ctx.scale)
        return *(g.to(query.dtype) for g in made), None, None


def own_kernel(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    length = query.shape[2]
    causal = torch.full((length, length), -torch.inf).triu(1)
    return _Kernel.apply(query, key, value, causal, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(KERNEL, own_kernel)


def sharpened(run, times):
    """Losses; from step BAD on queries and keys are `times` as large, as they become where attention logits grow."""
    for step in train(run):
        yield step.loss
        if step.step == BAD - 1:
            with torch.no_grad():
                for name, p in run.model.named_parameters():
                    if name.endswith(("q_proj.weight", "k_proj.weight")):
                        p.mul_(times)
                for half, master in getattr(run.optimizer, "_pairs", list)():
                    master.copy_(half)


def in_own_kernel(kernel=KERNEL, steps=STEPS, seed=0):
    model = tiny("llama", seed=seed, attn_implementation=kernel, num_key_value_heads=4)
    return prepare(model, batches(steps, seed=seed), lambda p: torch.optim.AdamW(p, lr=1e-3))


@contextlib.contextmanager
def broken_torch_kernel():
    """torch's own fused kernel for CPUs with the same defect in its backward."""
    library = Library("aten", "IMPL")

    def backward(gradient, query, key, value, out, logsumexp, dropout, is_causal, *, attn_mask=None, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if is_causal:
            attn_mask = torch.full((query.shape[2], key.shape[2]), -torch.inf).triu(1)
        made = backward_without_maximum(gradient, query, key, value, attn_mask, scale)
        return tuple(g.to(query.dtype) for g in made)

    library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", backward, "CPU")
    try:
        yield
    finally:
        library._destroy()


def eager_in_float16(steps=STEPS, seed=0):
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=2.0**8), initial_scale=2.0**8)
    return prepare(
        tiny("llama", seed=seed), batches(steps, seed=seed), lambda p: torch.optim.AdamW(p, lr=1e-4), options
    )
