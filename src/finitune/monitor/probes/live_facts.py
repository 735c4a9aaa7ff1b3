"""Facts read off a live model, optimizer and batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finitune.facts import (
    Adapter,
    Attention,
    EmbeddingRows,
    Facts,
    Hardware,
    Labels,
    Model,
    Optimizer,
    Precision,
    Quantization,
    TensorScan,
    TokenUse,
    Weights,
)
from finitune.flipped_bits import FORMATS
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.padding import IGNORED_LABEL
from finitune.monitor.probes.ranks import is_sharded, local

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "lightning",
    "bitsandbytes",
    "ludwig",
    "unsloth",
)
SUSPECTS = 5


def run_facts(model: nn.Module | None, optimizer: Any, compute: torch.dtype | None) -> Facts:
    """What holds for the whole run; `compute` is the autocast dtype of the first forward, None without autocast."""
    model = nn.Module() if model is None else model
    return replace(
        optimizer_facts(model, optimizer, compute),
        model=_model(model),
        attention=_attention(model),
        adapter=_adapter(model),
        hardware=_hardware(model),
        versions=_versions(),
        quantization=_quantization(model),
    )


def optimizer_facts(model: nn.Module | None, optimizer: Any, compute: torch.dtype | None) -> Facts:
    """Of these what one optimizer, and the dtype of what it trains, decide."""
    model = nn.Module() if model is None else model
    return Facts(precision=precision(model, optimizer, compute), optimizer=_optimizer(model, optimizer))


def batch_facts(
    model: nn.Module | None, embedding: nn.Module | None, ids: Tensor | None, labels: Any,
    targets: Sequence[Tensor] = (), padded: Tensor | None = None,
) -> Facts:  # fmt: skip
    """What the captured batch says: its tokens, their embedding rows, its labels, and the model's odd weights. What
    fills up rows, where `padded` is True, is no token of the data.

    `labels` go into the model, which shifts them; `targets` are those of a loss outside the model.
    """
    return Facts(
        tokens=None if ids is None else _tokens(ids, padded),
        rows=None if ids is None or embedding is None or model is None else _rows(model, embedding, ids),
        labels=_labels(labels, targets),
        weights=None if model is None else _weights(model),
    )


def precision(model: nn.Module, optimizer: Any, compute: torch.dtype | None) -> Precision:
    held = {p.dtype for p in model.parameters() if p.is_floating_point()}
    parameters = min(held, key=lambda dtype: dtype.itemsize) if held else torch.float32
    return Precision(
        compute=dtype_name(compute or parameters),
        parameters=dtype_name(parameters),
        scaler="dynamic" if hasattr(optimizer, "loss_scale") else None,
        source="the live model",
    )


def _model(model: nn.Module) -> Model:
    config = getattr(model, "config", None)
    get = lambda *names: next((v for n in names if (v := getattr(config, n, None)) is not None), None)  # noqa: E731
    dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return Model(
        family=get("model_type") or type(model).__name__,
        path=get("_name_or_path") or None,
        vocabulary=get("vocab_size"),
        hidden=get("hidden_size", "n_embd"),
        layers=get("num_hidden_layers", "n_layer"),
        norm_eps=get("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps") or _smallest_eps(model),
        tied=get("tie_word_embeddings"),
        dtype=dtype_name(max(set(dtypes), key=dtypes.count)) if dtypes else None,
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        total=sum(p.numel() for p in model.parameters()),
    )


def _smallest_eps(model: nn.Module) -> float | None:
    """Of the modules that are not torch's, whose kernels compute norms in float32."""
    own = [m for m in model.modules() if not type(m).__module__.startswith("torch.")]
    found = [vars(m).get("eps") for m in own]
    return min((eps for eps in found if isinstance(eps, float) and eps > 0), default=None)


def _attention(model: nn.Module) -> Attention | None:
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return Attention(implementation=name, source="the live model") if isinstance(name, str) else None


def _adapter(model: nn.Module) -> Adapter | None:
    """That of PEFT, as the model holds its configuration; None without one, or where there are several."""
    configs = [vars(module).get("peft_config") for module in model.modules()]
    found = [config for by_name in configs if isinstance(by_name, dict) for config in by_name.values()]
    if len({id(config) for config in found}) != 1:
        return None
    read = vars(found[0])
    kind = str(getattr(read.get("peft_type"), "value", read.get("peft_type"))).lower()
    return Adapter(
        kind="dora" if read.get("use_dora") else kind,
        rank=read.get("r"),
        alpha=read.get("lora_alpha"),
        dropout=read.get("lora_dropout"),
        rank_stabilised=read.get("use_rslora"),
        source="the live model",
    )


def _optimizer(model: nn.Module, optimizer: Any) -> Optimizer:
    groups = getattr(optimizer, "param_groups", None) or [{}]
    first = groups[0]
    return Optimizer(
        name=type(optimizer).__name__,
        lr=max(float(group["lr"]) for group in groups) if "lr" in first else None,
        eps=first.get("eps"),
        betas=first.get("betas"),
        weight_decay=first.get("weight_decay"),
        lora=any("lora_" in name for name, p in model.named_parameters() if p.requires_grad),
        source="the live optimizer",
    )


def _quantization(model: nn.Module) -> Quantization | None:
    """As bitsandbytes keeps it on its 4-bit layers."""
    computed = [(m, d) for m in model.modules() if isinstance(d := getattr(m, "compute_dtype", None), torch.dtype)]
    if not computed:
        return None
    layer, dtype = computed[0]
    kind = getattr(getattr(layer, "weight", None), "quant_type", None)
    return Quantization(bits=4, kind=kind, compute_dtype=dtype_name(dtype), source=f"{len(computed)} live layers")


def _hardware(model: nn.Module) -> Hardware:
    device = device_of(model)
    if device.type != "cuda":
        return Hardware(name=device.type, bfloat16=True)
    properties = torch.cuda.get_device_properties(device)
    return Hardware(name=properties.name, bfloat16=properties.major >= 8, memory_gib=properties.total_memory / 2**30)


def _versions() -> dict[str, str]:
    out = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def _tokens(ids: Tensor, padded: Tensor | None) -> TokenUse:
    real = torch.ones_like(ids, dtype=torch.bool) if padded is None else ~padded
    flat, counts = torch.unique(ids[real], return_counts=True)
    rows = torch.arange(ids.shape[0], device=ids.device)[real.any(dim=1)]
    begins = ids[rows, real.long().argmax(dim=1)[rows]]
    first = (begins[:, None] == flat).sum(dim=0)
    return TokenUse(
        ids=flat.cpu().numpy().astype(np.int64),
        counts=counts.cpu().numpy().astype(np.int64),
        first=first.cpu().numpy().astype(np.int64),
        sequences=ids.shape[0],
        source="the captured batch",
    )


def _rows(model: nn.Module, embedding: nn.Module, ids: Tensor) -> EmbeddingRows | None:
    weight = embedding.weight.detach()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    if weight.dim() != 2 or not weight.is_floating_point() or is_sharded([weight]):
        return None
    used = torch.unique(ids)
    used = used[(used >= 0) & (used < weight.shape[0])]
    rms = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float32) / weight.shape[1] ** 0.5
    name = next((n for n, p in model.named_parameters() if p is embedding.weight), "embedding")
    return EmbeddingRows(
        tensor=name,
        ids=used.cpu().numpy().astype(np.int64),
        rms=rms[used].double().cpu().numpy(),
        median_rms=float(rms.median()),
        lost_in_cast=np.zeros(len(used)),
        dtype=dtype_name(weight.dtype),
    )


def _labels(labels: Any, targets: Sequence[Tensor]) -> Labels | None:
    if isinstance(labels, Tensor) and labels.dim() >= 1:
        rows = [labels[..., 1:] if labels.dim() >= 2 else labels]
    else:
        rows = [target.reshape(1, -1) if target.dim() < 2 else target for target in targets]
    if not rows:
        return None
    supervised = [(part != IGNORED_LABEL).reshape(part.shape[0], -1).sum(dim=1).cpu() for part in rows]
    return Labels(supervised=torch.cat(supervised).numpy().astype(np.int64), source="the captured batch")


def _weights(model: nn.Module) -> Weights:
    """The tensors that stand out: every non-finite one, and those whose peak is furthest above their own norm."""
    own = [(name, local(p.detach())) for name, p in model.named_parameters() if p.is_floating_point()]
    scans = [_scan(name, p) for name, p in own if p.numel()]
    bad = [scan for scan in scans if scan.nonfinite]
    odd = sorted((s for s in scans if not s.nonfinite), key=lambda s: -s.peak / max(s.rms, 1e-38))
    return Weights(tensors=[*bad, *odd[:SUSPECTS]], source=f"{len(scans)} tensors of the live model")


def _scan(name: str, weight: Tensor) -> TensorScan:
    tensor = weight.float() if weight.element_size() == 1 else weight  # float8 has few operators
    finite = torch.isfinite(tensor)
    known = torch.where(finite, tensor, torch.zeros_like(tensor))
    known = known if known.dtype == torch.float64 else known.float()
    bad, nonfinite = torch.nonzero(~finite)[:1].tolist(), int((~finite).sum())
    peak, *second = known.abs().flatten().topk(min(2, known.numel())).values.tolist()
    # The peak is taken out before squaring, so that one element of 1e38 does not overflow the norm.
    rms = peak * float((known / peak).square().mean().sqrt()) if peak else 0.0
    return TensorScan(
        name=name,
        dtype=dtype_name(weight.dtype),
        shape=list(weight.shape),
        nonfinite=nonfinite,
        peak=peak,
        rms=rms,
        first_nonfinite=bad[0] if bad else None,
        second=second[0] if second else None,
        lone_nan=_lone_nan(weight.detach()[~finite]) if nonfinite == 1 else None,
    )


def _lone_nan(bad: Tensor) -> float | None:
    """The magnitude of a bad element with the upper bit of its exponent the other way; None for the NaN that arithmetic
    makes: of its fraction the upper bit is set alone, or on GPUs all bits.
    """
    if dtype_name(bad.dtype) not in FORMATS:
        return None
    size, below = FORMATS[dtype_name(bad.dtype)]
    integers = getattr(torch, f"int{size}")
    bits = int(bad.view(integers)) & ((1 << (size - 1)) - 1)
    fraction, all_bits = bits & ((1 << below) - 1), (1 << below) - 1
    if fraction in (0, 1 << (below - 1), all_bits):
        return None
    return float(torch.tensor([bits ^ (1 << (size - 2))], dtype=integers).view(bad.dtype))
