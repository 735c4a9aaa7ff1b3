"""Find the origin: the first operator whose inputs are finite and whose output is not, forward or backward.

A deliberate -inf, as in an attention mask, is none: it may pass through until it turns into NaN or +inf.
A non-finite parameter or input is the origin itself. A backward operator is attributed to the module and the
source line whose forward created it, through the sequence number that autograd gives both.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.finding import Origin, Phase
from finitune.monitor.probes.finite import Places, is_finite, places
from finitune.monitor.probes.names import dtype_name, parameter_names
from finitune.monitor.replay.capture import Autocast
from finitune.monitor.replay.padding import padding_of
from finitune.monitor.replay.rerun import Outcome, Setting, rerun

_OVERWRITES_SELF = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_")
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
MAX_PLACES = 16
_COMMUNICATION = ("fsdp", "c10d", "_c10d_functional")
"""Namespaces of operators that move numbers between ranks, into buffers that hold whatever was in memory before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one module put out in the captured step: `peak` is its largest finite magnitude."""

    module: str
    peak: float
    nonfinite: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The answer of one instrumented run."""

    origin: Origin | None
    outcome: Outcome
    layers: list[Layer]
    inside: torch.dtype | None = None
    """The autocast dtype that the model's own forward turns on, as accelerate has it do."""


def locate(setting: Setting) -> Located:
    """Run the step once more, watching every operator. One extra forward and backward."""
    watch = OperatorWatch(setting)
    outcome = rerun(replace(setting, eager=True), _watching(setting.model, watch))
    origin = None if outcome.sound else _bad_leaf(setting) or watch.found()
    return Located(origin=origin, outcome=outcome, layers=watch.layers, inside=watch.inside)


def _bad_leaf(setting: Setting) -> Origin | None:
    """A parameter, buffer or input that is non-finite before anything is computed."""
    for name, parameter in setting.model.named_parameters():
        if parameter.is_floating_point() and not is_finite(parameter):
            return _leaf_origin("parameter", name, parameter, places(parameter))
    for name, buffer in setting.model.named_buffers():
        if buffer.is_floating_point() and not is_finite(buffer):
            found = places(buffer)
            if found.nan or found.inf:
                return _leaf_origin("parameter", name, buffer, found)
    for micro in setting.capture.micro_steps:
        for call in micro.calls:
            for path, leaf in pytree.tree_flatten_with_path((call.args, call.kwargs))[0]:
                if isinstance(leaf, Tensor) and leaf.is_floating_point() and not is_finite(leaf):
                    found = places(leaf)
                    if found.nan or found.inf:
                        return _leaf_origin("input", pytree.keystr(path), leaf, found)
    return None


def _leaf_origin(phase: Phase, name: str, tensor: Tensor, found: Places) -> Origin:
    return Origin(
        module=name.rpartition(".")[0] if phase == "parameter" else None,
        op=phase,
        phase=phase,
        dtype=dtype_name(tensor.dtype),
        rows=sorted({index[0] for index in found.indices if index})[:MAX_PLACES] or None,
        values=_values(found),
        peak=found.peak,
        tensor=name,
    )


@dataclass(slots=True, kw_only=True)
class _Made:
    """Where a value came from that may be meant: the operator that made it, None for a -inf put there on purpose."""

    tensor: Tensor
    origin: Origin | None


@dataclass(slots=True, kw_only=True)
class _Creator:
    module: str | None
    line: str | None


class OperatorWatch(TorchDispatchMode):
    """Looks at every operator's output until the origin is found."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.origin: Origin | None = None
        self.layers: list[Layer] = []
        self.modules: list[str] = []
        self.inside: torch.dtype | None = None
        self._outside: torch.dtype | None = None
        self._creators: dict[int, _Creator] = {}
        self._made: list[_Made] = []
        self._setting = setting
        self._names = parameter_names(setting.model)
        self._call = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        node = torch._C._current_autograd_node()
        # Checkpointing runs the forward again in the backward; within a Function of the user's own without grad.
        if node is None or torch.is_grad_enabled() or self.modules:
            number = torch.autograd._get_sequence_nr() - 1
            if number not in self._creators:
                self._creators[number] = _Creator(module=self._module(), line=_user_line())
        before = self._inputs(func, args, kwargs) if self.origin is None else []
        overwritten = [t for t in before if _overwritten_later(func, args, t) and not is_finite(t)]
        unsound = {id(t): _only_minus_inf(t) for t in overwritten}
        out = func(*args, **kwargs)
        if self.origin is None:
            self._look(func, args, kwargs, out, before, unsound, node)
        return out

    def found(self) -> Origin | None:
        """The origin; for a step that ended in -inf alone, the maker of the -inf that came last."""
        return self.origin or next((made.origin for made in reversed(self._made) if made.origin), None)

    def _inputs(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()]
        if func.overloadpacket.__name__ in _OVERWRITES_SELF and args and isinstance(args[0], Tensor):
            leaves = [t for t in leaves if t is not args[0]]
        return leaves

    def _look(
        self, func: Any, args: Any, kwargs: Any, out: Any, inputs: list[Tensor], unsound: dict[int, bool], node: Any
    ):
        name = func.overloadpacket.__name__
        if "empty" in name or func.namespace in _COMMUNICATION:
            return  # a bad value that comes in from another rank is seen there
        if func.is_view and name != "lift_fresh":  # the same values under another shape
            views = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
            of = [made for made in self._made if any(made.tensor is t for t in inputs)]
            self._made += [_Made(tensor=view, origin=made.origin) for made in of for view in views]
            return
        written = name == "lift_fresh" or _written_down(args, kwargs)
        outputs = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor) and t.is_floating_point()]
        for tensor in outputs:
            if is_finite(tensor):
                continue
            found = places(tensor)
            minus_only = not (found.nan or found.inf)
            bad = {id(t): _only_minus_inf(t) for t in inputs if t is not tensor and not is_finite(t)} | unsound
            history = [made for made in self._made if id(made.tensor) in bad]
            known = {id(made.tensor) for made in history}
            if any(not minus_inf and t not in known for t, minus_inf in bad.items()):
                return  # an input was NaN or +inf already, and its maker was looked at when it was made
            origin = next((made.origin for made in history if made.origin), None)
            new = not bad or found.nan or all(bad.values())  # else an infinity that was known is passed on
            if origin is None and new and inputs and not (bad and minus_only):
                origin = self._as_origin(name, tensor, inputs, found, node)
            if not bad and written:  # put there on purpose, as a mask or a bound; to blame where a NaN comes of it
                origin = None if minus_only else self._as_origin(name, tensor, inputs, found, node)
                self._made.append(_Made(tensor=tensor, origin=origin))
            elif minus_only or not new:
                self._made.append(_Made(tensor=tensor, origin=origin))
            elif inputs:
                self.origin = origin
                self._made.clear()
                return

    def _as_origin(self, name: str, tensor: Tensor, inputs: list[Tensor], found: Places, node: Any) -> Origin:
        module, line, gradient_of = self._blamed(node)
        rows, positions, tokens, padding = self._places_in_batch(tensor, found)
        return Origin(
            module=module,
            op=f"aten.{name}",
            phase="backward" if node is not None else "forward",
            dtype=dtype_name(tensor.dtype),
            rows=rows,
            positions=positions,
            tokens=tokens,
            values=_values(found),
            peak=max((places(t).peak for t in inputs), default=None),
            padding=padding,
            tensor=gradient_of,
            line=line,
        )

    def _blamed(self, node: Any) -> tuple[str | None, str | None, str | None]:
        """Module, source line, and the parameter whose gradient is being summed up, for an operator run by `node`."""
        if node is None:
            return self._module(), _user_line(), None
        gradient_of = self._names.get(id(getattr(node, "variable", None)))  # over micro-steps, or in a hook
        if gradient_of is not None:
            return gradient_of.rpartition(".")[0], _user_line(), gradient_of
        creator = self._creators.get(node._sequence_nr())
        return (creator.module, creator.line, None) if creator else (None, _user_line(), None)

    def _module(self) -> str | None:
        return self.modules[-1] if self.modules else None

    def _places_in_batch(self, tensor: Tensor, found: Places) -> tuple[Any, Any, Any, bool | None]:
        """Batch rows, positions, token ids there, and whether all of them are padding; None where not known."""
        calls = [call for micro in self._setting.capture.micro_steps for call in micro.calls]
        if not calls or not found.indices or not found.indices[0]:
            return None, None, None, None
        call = calls[min(self._call, len(calls)) - 1]
        ids = call.token_ids()
        if ids is None:
            return None, None, None, None
        n_rows, n_positions = ids.shape
        where = {_row_and_position(index, tensor.shape, n_rows, n_positions) for index in found.indices}
        known = sorted(pair for pair in where if pair is not None)
        if not known:
            vocabulary = tensor.dim() == 2 and tensor.shape[0] > int(ids.max())
            rows = sorted({index[0] for index in found.indices})[:MAX_PLACES]
            return None, None, rows if vocabulary else None, None
        rows = sorted({row for row, _ in known})
        positions = sorted({position for _, position in known if position is not None})
        tokens = sorted({int(ids[row, position]) for row, position in known if position is not None})
        mask = call.kwargs.get("attention_mask")
        masked = mask == 0 if isinstance(mask, Tensor) and mask.shape == ids.shape else None
        filled = padding_of(ids, mask)
        if filled is not None:
            masked = filled.where if masked is None else masked | filled.where
        padding = None
        if positions and masked is not None:
            padding = all(bool(masked[row, position]) for row, position in known if position is not None)
        return rows[:MAX_PLACES], positions[:MAX_PLACES] or None, tokens[:MAX_PLACES] or None, padding

    def entered(self, name: str) -> None:
        self._call += not self.modules and torch._C._current_autograd_node() is None
        if not self.layers:  # on the way to the first module that puts something out
            autocast = Autocast.now().dtype
            self._outside = self._outside if self.modules else autocast
            self.inside = autocast if autocast != self._outside else None
        self.modules.append(name)

    def left(self, name: str, output: Any) -> None:
        self.modules.pop()
        for tensor in pytree.tree_leaves(output)[:1]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                found = places(tensor, limit=0)
                self.layers.append(
                    Layer(module=name, peak=found.peak, nonfinite=found.nan + found.inf + found.minus_inf)
                )


def _row_and_position(
    index: list[int], shape: torch.Size, n_rows: int, n_positions: int
) -> tuple[int, int | None] | None:
    """Where an element of an activation lies in the batch, by the tensor's shape; None when it cannot be told."""
    if shape[0] == n_rows and len(shape) >= 2:
        if shape[1] == n_positions:
            return index[0], index[1]
        if len(shape) == 4 and shape[2] == n_positions:  # attention scores and heads: [rows, heads, positions, ...]
            return index[0], index[2]
        return (index[0], None) if len(shape) > 2 else None
    if shape[0] == n_rows * n_positions:
        return index[0] // n_positions, index[0] % n_positions
    if (
        n_rows and shape[0] % n_rows == 0 and len(shape) == 3 and shape[1] == n_positions
    ):  # [rows * heads, positions, ...]
        return index[0] // (shape[0] // n_rows), index[1]
    return None


def _overwritten_later(func: Any, args: Any, tensor: Tensor) -> bool:
    """In-place operators change their input, so it must be judged before they run."""
    return func._schema.is_mutable and bool(args) and args[0] is tensor


def _only_minus_inf(tensor: Tensor) -> bool:
    found = places(tensor, limit=0)
    return not (found.nan or found.inf)


def _written_down(args: Any, kwargs: Any) -> bool:
    """True when an infinity or a NaN stands in the call itself, as in `masked_fill(mask, -inf)`."""
    return any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in pytree.tree_leaves((args, kwargs)))


def _values(found: Places) -> str:
    counts = (("nan", found.nan), ("inf", found.inf), ("-inf", found.minus_inf))
    return ", ".join(f"{count} {kind}" for kind, count in counts if count)


def _user_line() -> str | None:
    """`file.py:123` of the innermost frame outside torch; None for what the replay computes by itself."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<")):
            return f"{Path(file).name}:{frame.f_lineno}"
        if file.startswith(_HERE) and file != __file__:
            return None
        frame = frame.f_back
    return None


@contextmanager
def _watching(model: nn.Module, watch: OperatorWatch) -> Iterator[None]:
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(lambda m, a, n=name: watch.entered(n)))
            handles.append(module.register_forward_hook(lambda m, a, out, n=name: watch.left(n, out)))
        with watch:
            yield
    finally:
        for handle in handles:
            handle.remove()
