"""What must be kept of a step so that it can be run again: references to its batches, and the state around them.

Nothing is copied on a healthy step but the random number state (5 KB on a CPU).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.monitor.replay import objective
from finitune.monitor.replay.objective import Objective

MAX_CALLS = 16
"""Model calls kept since the last backward; older ones belong to an evaluation with gradients on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomness:
    """Random number states as they were right before a forward."""

    cpu: Tensor
    devices: dict[int, Tensor]
    python: tuple[Any, ...]
    numpy: Any

    @staticmethod
    def now() -> Randomness:
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        return Randomness(
            cpu=torch.get_rng_state(),
            devices={i: torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())} if cuda else {},
            python=random.getstate(),
            numpy=sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None,
        )

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.devices.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """The autocast state per device type, as it was right before a forward."""

    states: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @staticmethod
    def now() -> Autocast:
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        return Autocast(
            states=tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices),
            cache=torch.is_autocast_cache_enabled(),
        )

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype that is on, None when autocast is off."""
        return next((dtype for _, enabled, dtype in self.states if enabled), None)

    @contextmanager
    def restored(self, dtype: torch.dtype | None = None, *, off: bool = False) -> Iterator[None]:
        """The same state again; with `dtype` in that dtype instead, or switched off."""
        with ExitStack() as stack:
            for device, enabled, own in self.states:
                on = enabled and not off
                context = torch.autocast(device, dtype=dtype or own, enabled=on, cache_enabled=self.cache)
                stack.enter_context(context)
            yield


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of the model with gradients on: its arguments by reference, and the state before it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    randomness: Randomness
    autocast: Autocast
    versions: tuple[tuple[Tensor, int], ...]
    outputs: dict[int, int] = field(default_factory=dict[int, int])
    """Sequence number of an output's node -> its place among the flattened output tensors."""

    @staticmethod
    def of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        leaves, shape = pytree.tree_flatten((args, kwargs))
        args, kwargs = pytree.tree_unflatten(leaves, shape)  # own containers: a trainer may pop keys from its batch
        return Call(
            module=module,
            args=args,
            kwargs=kwargs,
            randomness=Randomness.now(),
            autocast=Autocast.now(),
            versions=tuple((leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor)),
        )

    @property
    def overwritten(self) -> bool:
        """True when the loop has changed a batch tensor in place since."""
        return any(tensor._version != version for tensor, version in self.versions)

    def token_ids(self) -> Tensor | None:
        """The integer input of shape [rows, positions], by name or as the first that fits."""
        named = self.kwargs.get("input_ids")
        leaves = [named] if isinstance(named, Tensor) else [t for t, _ in self.versions]
        fitting = [t for t in leaves if t.dim() == 2 and t.dtype in (torch.int64, torch.int32)]
        return fitting[0] if fitting else None


@dataclass(slots=True, kw_only=True)
class MicroStep:
    """One backward and the model calls since the one before."""

    calls: list[Call] = field(default_factory=list[Call])
    root: Tensor | None = None
    """The loss as the loop handed it to backward, detached; scaled where the loop scales."""
    objective: Objective | None = None
    unreadable: str | None = None
    """Why there is no objective."""


@dataclass(slots=True, kw_only=True)
class Capture:
    """Everything of one optimizer step: its micro-steps in order."""

    micro_steps: list[MicroStep] = field(default_factory=list[MicroStep])

    @property
    def complete(self) -> bool:
        return bool(self.micro_steps) and all(m.calls and m.root is not None for m in self.micro_steps)

    @property
    def runnable(self) -> str | None:
        """None when the step can be run again, else why not."""
        if not self.complete:
            return "no forward and backward of the watched model were seen in this step"
        for micro in self.micro_steps:
            if micro.objective is None:
                return f"the loss is computed outside the model in a way that cannot be run again ({micro.unreadable})"
            if any(call.overwritten for call in micro.calls):
                return "the batch was overwritten in place after the forward"
        return None


class Calls:
    """The calls of a model since the last backward, which makes a micro-step of them."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._depth = 0

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """An entry point is called. True for the outermost one, with gradients on, which is kept."""
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return False
        self._calls.append(Call.of(module, args, kwargs))
        del self._calls[:-MAX_CALLS]
        return True

    def end(self, output: Any) -> None:
        """The entry point that was called last has returned, or raised."""
        self._depth -= 1
        if self._depth == 0 and torch.is_grad_enabled() and self._calls:
            for place, tensor in enumerate(output_tensors(output)):
                number = objective.sequence_number(tensor)
                if number is not None:
                    self._calls[-1].outputs.setdefault(number, place)

    def micro_step(self, root: Tensor) -> MicroStep | None:
        """What the backward of `root` closes; None when no call was seen."""
        if not self._calls:
            return None
        micro = MicroStep(calls=self._calls, root=root.detach())
        self._calls = []
        outputs = {number for call in micro.calls for number in call.outputs}
        try:
            micro.objective = objective.read(root, outputs)
            # Calls whose outputs the loss does not use need not be run again.
            micro.calls = [call for call in micro.calls if micro.objective.uses & call.outputs.keys()]
        except (objective.NotReadable, AttributeError, RuntimeError) as error:
            micro.unreadable = str(error)
        return micro


def output_tensors(output: Any) -> list[Tensor]:
    """The tensors of a model's output, flattened in a fixed order; dataclass-like outputs included."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def entry_points(model: nn.Module, parameters: list[nn.Parameter]) -> list[nn.Module]:
    """The modules that hold everything that is trained: whichever of them the loop calls first is the model's call."""
    trained = {id(p) for p in parameters}
    return [m for m in model.modules() if trained <= {id(p) for p in m.parameters()}] or [model]
