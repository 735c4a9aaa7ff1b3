"""Training loops, one per path that the guard can take on a GPU: optimizer, precision, scaler, loss, structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, ROWS, LENGTH = 256, 16, 4, 32
LOGITS_BYTES = ROWS * LENGTH * VOCABULARY * 4
MICRO_BATCH_BYTES = ROWS * LENGTH * 8
CLIP = 0.1
SCALE = 2.0**10

Optimizers = Callable[[nn.Module], list[torch.optim.Optimizer]]
Loss = Callable[[Tensor, Tensor], Tensor]


class Model(nn.Module):
    """Next-token logits, shape [rows, length, VOCABULARY]; no random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return self.head(self.norm(x + self.mlp(x)).to(self.head.weight.dtype))


def one(kind: Any, **options: Any) -> Optimizers:
    return lambda model: [kind(model.parameters(), **options)]


foreach_adamw = one(torch.optim.AdamW)
"""Foreach is the default of torch on a device."""


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def entropy_bonus(logits: Tensor, ids: Tensor) -> Tensor:
    """As in policy gradients."""
    chances = logits.log_softmax(-1)
    entropy = -(chances.exp() * chances).sum(-1).mean()
    return F.nll_loss(chances.flatten(0, 1), ids.flatten()) - 0.01 * entropy


def divergence(logits: Tensor, ids: Tensor) -> Tensor:
    """KL divergence from a reference, as in distillation and preference training."""
    reference = torch.zeros_like(logits).log_softmax(-1)
    return cross_entropy(logits, ids) + F.kl_div(
        logits.log_softmax(-1), reference, reduction="batchmean", log_target=True
    )


def teacher(logits: Tensor, ids: Tensor) -> Tensor:
    """Squared distance from the logits of a teacher."""
    return F.mse_loss(logits, torch.sin(torch.arange(VOCABULARY, device=ids.device) + ids.unsqueeze(-1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """`halves` names the modules that are float16; `dtype` is that of all others."""

    name: str
    optimizers: Optimizers = foreach_adamw
    loss: Loss = cross_entropy
    dtype: torch.dtype = torch.float32
    halves: tuple[str, ...] = ()
    autocast: torch.dtype | None = None
    scaler: bool = False
    clip: bool = False
    accumulate: int = 1
    closure: bool = False
    parallel: str | None = None
    """On two ranks: "ddp" or "fsdp2"."""
    spoilt: tuple[str, ...] = ("head.weight",)
    """Parameters whose gradient a bad step spoils: one of each optimizer."""


class Training:
    """A loop as a user writes it, on the device `where`. The batch of micro-step n of a rank is always the same."""

    def __init__(self, path: Path, where: str, *, rank: int = 0) -> None:
        torch.manual_seed(0)
        self.path = path
        self._where = where
        model = Model().to(path.dtype)
        for name in path.halves:
            model.get_submodule(name).to(torch.float16)
        self.model = _parallel(path.parallel, model.to(where), where)
        self.optimizers = path.optimizers(self.model)
        self.scaler = torch.amp.GradScaler(where, init_scale=SCALE, enabled=path.scaler)
        self._micro_steps = 0
        self._rank = rank

    def step(self, at: Callable[[str], object] = lambda place: None) -> None:
        """One step of each optimizer; `at` is called with "backward", "update" and "end" when these are over.

        The loop holds its batches up to the end, and nothing of the step after it.
        """
        batches = [self._batch() for _ in range(self.path.accumulate)]
        if self.path.closure:
            (optimizer,) = self.optimizers
            optimizer.step(lambda: self._backward(batches, at))
        else:
            self._backward(batches, at)
            if self.path.clip:
                for optimizer in self.optimizers:
                    self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
        at("update")
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        batches.clear()
        at("end")

    def spare(self) -> None:
        """Instead of a step that would be bad: its batches are left out, and the loss scale is what it would leave."""
        self._micro_steps += self.path.accumulate
        if self.path.scaler:
            state = self.scaler.state_dict()
            self.scaler.load_state_dict({**state, "scale": state["scale"] * state["backoff_factor"]})

    def spoil(self, value: float) -> None:
        """The next backward writes `value` into one element of the gradients that the path names."""
        for name in self.path.spoilt:
            handles: list[Any] = []

            def spoilt(gradient: Tensor, handles: list[Any] = handles) -> Tensor:
                handles.pop().remove()
                gradient = gradient.clone()
                gradient.view(-1)[0] = value
                return gradient

            handles.append(self.model.get_parameter(name).register_hook(spoilt))

    def _backward(self, batches: Iterable[Tensor], at: Callable[[str], object]) -> Tensor:
        if self.path.closure:
            self.optimizers[0].zero_grad()
        total = torch.zeros((), device=self._where)
        for ids in batches:
            with torch.autocast(self._where, dtype=self.path.autocast, enabled=self.path.autocast is not None):
                loss = self.path.loss(self.model(ids).float(), ids) / self.path.accumulate
            self.scaler.scale(loss).backward()
            total += loss.detach()
            del loss
        at("backward")
        return total

    def _batch(self) -> Tensor:
        seed = 2 * self._micro_steps + self._rank
        self._micro_steps += 1
        ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
        return ids.pin_memory().to(self._where, non_blocking=True) if self._where != "cpu" else ids


def _parallel(kind: str | None, model: Model, where: str) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(where, (torch.distributed.get_world_size(),))
        for part in (model.mlp, model.head, model):
            fully_shard(part, mesh=mesh)
    return model


def _two(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [torch.optim.SGD(matrices, lr=0.01, momentum=0.9), torch.optim.AdamW(others)]


def _device_rate(model: nn.Module) -> list[torch.optim.Optimizer]:
    rate = torch.full((), 1e-3, device=next(model.parameters()).device)
    return [torch.optim.AdamW(model.parameters(), lr=rate, capturable=True, foreach=True)]


class Signs(torch.optim.Optimizer):
    """One of a program's own: whether its update is finite is not known from its gradients."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.lerp_(p.grad, 0.1)
                    p.sub_(mean / mean.abs().add(1e-12), alpha=group["lr"])


_SGD, _ADAM, _ADAMW, _ADAGRAD = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad
_MOMENTUM = {"lr": 0.01, "momentum": 0.9}
_HALF = {"eps": 1e-4}  # 1e-8 is zero in float16

PATHS = (
    Path(name="single-tensor", optimizers=one(_ADAMW, foreach=False)),
    Path(name="foreach"),
    Path(name="foreach, clipped", clip=True),
    Path(name="accumulation 4", accumulate=4),
    Path(name="accumulation 4, clipped", accumulate=4, clip=True),
    Path(name="SGD with momentum", optimizers=one(_SGD, **_MOMENTUM)),
    Path(name="fused Adam", optimizers=one(_ADAM, fused=True)),
    Path(name="fused AdamW", optimizers=one(_ADAMW, fused=True)),
    Path(name="fused AdamW, clipped", optimizers=one(_ADAMW, fused=True), clip=True),
    Path(name="fused Adagrad", optimizers=one(_ADAGRAD, fused=True)),
    Path(name="fused SGD with momentum", optimizers=one(_SGD, fused=True, **_MOMENTUM)),
    Path(name="bfloat16 autocast", autocast=torch.bfloat16),
    Path(name="bfloat16 weights", dtype=torch.bfloat16),
    Path(name="GradScaler, single-tensor", optimizers=one(_ADAMW, foreach=False), scaler=True),
    Path(name="GradScaler, foreach", scaler=True),
    Path(name="GradScaler, foreach, clipped", scaler=True, clip=True),
    Path(name="GradScaler, float16 autocast", scaler=True, clip=True, autocast=torch.float16),
    Path(name="GradScaler, fused", optimizers=one(_ADAMW, fused=True), scaler=True),
    Path(name="GradScaler, fused, clipped", optimizers=one(_ADAMW, fused=True), scaler=True, clip=True),
    Path(name="GradScaler, fused SGD", optimizers=one(_SGD, fused=True, **_MOMENTUM), scaler=True),
    Path(name="GradScaler, accumulation 4", scaler=True, accumulate=4),
    Path(name="float16 weights, foreach", optimizers=one(_ADAMW, **_HALF), dtype=torch.float16),
    Path(name="float16 weights, fused", optimizers=one(_ADAMW, fused=True, **_HALF), dtype=torch.float16),
    Path(name="one float16 module", optimizers=one(_ADAMW, foreach=False, **_HALF), halves=("head",)),
    Path(name="rate on the device", optimizers=_device_rate),
    Path(name="LBFGS", optimizers=one(torch.optim.LBFGS, max_iter=1), closure=True),
    Path(name="an optimizer of its own", optimizers=one(Signs)),
    Path(name="two optimizers", optimizers=_two, spoilt=("head.weight", "head.bias")),
    Path(name="entropy bonus", loss=entropy_bonus),
    Path(name="KL divergence", loss=divergence),
    Path(name="teacher's logits", loss=teacher),
)

RANKED = (
    Path(name="DDP", parallel="ddp"),
    Path(name="DDP, clipped", parallel="ddp", clip=True),
    Path(name="DDP, fused", parallel="ddp", optimizers=one(_ADAMW, fused=True)),
    Path(name="DDP, GradScaler", parallel="ddp", scaler=True, clip=True),
    Path(name="FSDP2", parallel="fsdp2"),
    Path(name="FSDP2, clipped", parallel="fsdp2", clip=True),
)
"""Each on two ranks."""
