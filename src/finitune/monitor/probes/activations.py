"""The largest magnitude that any module puts out, and that any softmax of attention gets, in one step of many.

Only where the whole model runs eagerly: hooks would make compiled code compile anew, and graphs of CUDA do not call
them. Figures stay on the device until they are read with those of the step.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.probes.ranks import local
from finitune.monitor.probes.torch_calls import unobservable

HEADS, QUERIES = 4, 64
"""Of fused attention, whose logits exist nowhere: so many heads of the first sample, and so many queries."""
_FUSED, _SOFTMAX = "scaled_dot_product_attention", "softmax"


def why_not(roots: Sequence[nn.Module]) -> str | None:
    """Why nothing can be seen of these models, None where it can."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters["frames"]["ok"]:
        return "compiled code is not looked into"
    return None if roots else "what is trained belongs to no module"


def begun(roots: Sequence[nn.Module], once: Callable[[str, str], None]) -> Activations | None:
    """A watch of the next step; None where nothing can be seen of it, which is said `once`."""
    reason = why_not(roots)
    if reason is None:
        return Activations(roots)
    once("activations", f"activations and attention logits are not recorded: {reason}")
    return None


class Activations:
    """Watches all modules below `roots` until `end`."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        self._peaks: list[Tensor] = []
        self._logits: list[Tensor] = []
        modules = {id(module): module for root in roots for module in root.modules()}
        self._handles = [
            module.register_forward_hook(self._left) for module in modules.values()
            if not isinstance(module, torch.jit.ScriptModule)
        ]  # fmt: skip
        self._originals = {name: getattr(F, name) for name in (_FUSED, _SOFTMAX)}
        F.scaled_dot_product_attention = self._observed(_FUSED, _fused_logit)
        F.softmax = self._observed(_SOFTMAX, _softmax_logit)

    def end(self) -> dict[str, Tensor]:
        """Stop watching; the signals `activation_peak` and `attention_logit`, each where there was one."""
        for handle in self._handles:
            handle.remove()
        for name, original in self._originals.items():
            setattr(F, name, original)
        seen = {"activation_peak": self._peaks, "attention_logit": self._logits}
        self._handles, self._originals = [], {}
        return {
            name: torch.stack([t.to(peaks[0].device) for t in peaks]).amax() for name, peaks in seen.items() if peaks
        }

    def _left(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if unobservable():
            return
        put_out = (leaf for leaf in leaves_of(output) if _can_be_measured(leaf) and leaf.dim())
        self._peaks += [_peak(tensor) for tensor in itertools.islice(put_out, 1)]  # not a loss beside the logits

    def _observed(self, name: str, logit: Callable[..., Tensor | None]) -> Callable[..., Any]:
        original = self._originals[name]

        def observed(*args: Any, **kwargs: Any) -> Any:
            if not unobservable():
                try:
                    peak = logit(*args, **kwargs)
                except Exception:  # shapes of another kind: the call itself says whether they are right
                    peak = None
                self._logits += [peak] if peak is not None else []
            return original(*args, **kwargs)

        return observed


def _can_be_measured(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() > 0 and (
        tensor.layout == torch.strided and not hasattr(tensor, "to_local")
    )  # fmt: skip


@torch.no_grad()
def _peak(tensor: Tensor) -> Tensor:
    """The largest finite magnitude: a mask of -inf is no activation."""
    return torch.nan_to_num(local(tensor.detach()), nan=0.0, posinf=0.0, neginf=0.0).abs().amax().float()


@torch.no_grad()
def _fused_logit(query: Tensor, key: Tensor, *_: Any, scale: float | None = None, **__: Any) -> Tensor | None:
    if not (_can_be_measured(query) and _can_be_measured(key)) or query.dim() < 3:
        return None
    q, k = query.detach().flatten(0, -3)[:HEADS, :QUERIES].float(), key.detach().flatten(0, -3)
    heads = torch.arange(len(q), device=k.device) * max(len(k), 1) // max(query.flatten(0, -3).shape[0], 1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return (q @ k[heads].float().transpose(-2, -1)).mul(factor).abs().amax()


def _softmax_logit(input: Tensor, *_: Any, **__: Any) -> Tensor | None:
    """Only of a softmax over keys: [samples, heads, queries, keys]."""
    if not _can_be_measured(input) or input.dim() != 4:
        return None
    masked = torch.finfo(input.dtype).min / 2  # a mask that is added is no logit
    with torch.no_grad():
        return _peak(input.detach().masked_fill(input.detach() <= masked, 0.0))
