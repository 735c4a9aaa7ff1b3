"""Watch every operator until the first whose inputs are finite and whose output is not: the origin.

A deliberate -inf, as in an attention mask, is none: it may pass through until it turns into NaN or +inf. A backward
operator is attributed to the module and the source line whose forward created it, through the sequence number that
autograd gives both. A value that no operator of aten was seen to make is blamed on the module that ran since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch.autograd.function import BackwardCFunction
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from finitune.finding import Origin
from finitune.monitor.capture.step import Call
from finitune.monitor.loss_graph import objective
from finitune.monitor.origin.batch_places import batch_places
from finitune.monitor.origin.divisors import Divisor, zeros_in
from finitune.monitor.origin.kernel_values import PRODUCTS, overwritten_later, put_in, put_out, written_down
from finitune.monitor.origin.node_values import NodeValues
from finitune.monitor.origin.tensor_map import TensorMap
from finitune.monitor.probes.finite import Places, is_finite, is_inexact, places
from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.probes.names import aten_name, dtype_name
from finitune.monitor.probes.surroundings import Autocast
from finitune.monitor.replay.limits import Limits
from finitune.monitor.user_code.source_line import user_line

_OVERWRITES_SELF = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_")
_COMMUNICATION = ("fsdp", "c10d", "_c10d_functional")
"""Namespaces of operators that move numbers between ranks, into buffers that hold whatever was in memory before."""
_OF_NOTHING = ("logsumexp", "amax")
"""Of a row that holds nothing but a mask they are -inf, which a loss may end in."""
LIFTED = "aten.lift_fresh"  # takes in numbers that torch has not computed
UNSEEN = "outside aten"
"""What stands for an operator that torch does not know: a kernel of Triton or C, or numpy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one module put out in the step: `peak` is its largest finite magnitude."""

    module: str
    peak: float
    nonfinite: int


@dataclass(slots=True, kw_only=True)
class _Made:
    """Where a value came from that may be meant: the operator that made it, None for a -inf put there on purpose."""

    origin: Origin | None
    batch: Tensor | None = None
    """Of the batch, whose -inf it holds, cast or computed with."""


@dataclass(slots=True, kw_only=True)
class _Creator:
    module: str | None
    line: str | None
    term: objective.Place | None = None


class OperatorWatch(TorchDispatchMode):
    """Looks at every operator's output until the origin is found. `names` maps identities of parameters to names.

    Where the step `goes_on` whatever happens, as a live one or one that several ranks run together, an inspection that
    raises ends the watch alone.
    """

    supports_higher_order_operators = True

    def __init__(
        self, names: Mapping[int, str], calls: Callable[[], list[Call]], limits: Limits, *, goes_on: bool = False
    ) -> None:
        super().__init__()
        self.goes_on = goes_on
        self.origin: Origin | None = None
        self.layers: list[Layer] = []
        self.modules: list[str] = []
        self.inside: torch.dtype | None = None
        self.bad_input: Tensor | None = None
        """What the batch itself brought into the origin, where that is a -inf that is no mask."""
        self.failed: Exception | None = None
        """Why a step that goes on was not seen to its end."""
        self.blind = False
        """Operators run, and nothing is looked at any more."""
        self.operators, self.measures_layers = 0, True
        self.after_backward = False
        """The origin was made after a backward, and before a module was called: by the loop, of gradients."""
        self._ran_backward = False
        self.line: Callable[[], str | None] = user_line
        """Of the statement that runs now."""
        self.module: Callable[[], str | None] = lambda: self.modules[-1] if self.modules else None
        """The one that runs now; of what is computed again the one whose method it is."""
        self.summed: Callable[[], str | None] = lambda: None
        """The parameter whose gradients a replay sums up now."""
        self._outside: torch.dtype | None = None
        self._creators: dict[tuple[int, int], _Creator] = {}
        self._home = threading.get_ident()
        self._made = TensorMap[_Made]()
        self._within = NodeValues()
        self._minus_inf, self._numbered = list[Origin](), list[tuple[Origin, objective.Place | None]]()
        self._empty: dict[int, tuple[Any, _Creator | None]] = {}
        self._names = names
        self._calls = calls
        self._limits = limits
        self._call, self._transformed = 0, False
        self._term: objective.Place | None = None
        self._around = torch._C._current_autograd_node()

    @classmethod
    def of_arithmetic(cls, *, goes_on: bool = False) -> OperatorWatch:
        """Of statements that are computed again by themselves: there is no model, and no layer to measure."""
        watch = cls({}, list, Limits.of_the_investigation(), goes_on=goes_on)
        watch.measures_layers = False
        return watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.blind:
            return func(*args, **kwargs)
        look = self.guarded(partial(self._before, func, args, kwargs))
        out = func(*args, **kwargs)
        if look is not None:
            self.guarded(partial(look, out))
        return out

    def guarded(self, looks: Callable[[], Any]) -> Any:
        """What an inspection returns."""
        if self.failed is not None:
            return None
        try:
            return looks()
        except Exception as error:
            if not self.goes_on:
                raise
            self.failed = error
            return None

    def _before(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        """Look at the inputs of an operator; returns what looks at its output, None where nothing need be seen."""
        self.operators += 1
        self._limits.check()
        node = self._node()
        self._ran_backward |= node is not None
        if self._within.is_over(node):
            self._decide()
        # Checkpointing runs the forward again in the backward; within a Function of the user's own without grad.
        if node is None or torch.is_grad_enabled() or self.modules:
            number = torch.autograd._get_sequence_nr() - 1
            self._creators.setdefault(
                (threading.get_ident(), number),
                _Creator(module=self.module(), line=self.line(), term=objective.running.get()),
            )
        if self.origin is not None or not hasattr(func, "overloadpacket"):  # a higher-order operator
            return None
        before = self._inputs(func, args, kwargs)
        overwritten = [t for t in before if overwritten_later(func, args, t) and not is_finite(t)]
        spoilt = {id(t): places(t, limit=0) for t in overwritten}
        divisor = zeros_in(aten_name(func), args)
        return lambda out: self._look(func, args, kwargs, out, before, spoilt, node, divisor)

    def found(self, *, bad_loss: bool = False) -> Origin | None:
        """The origin; where a loss, or all of the step, ended in -inf alone, the last operator that made one.

        With `bad_loss` that is an operator of the forward, whatever the backward made of it.
        """
        self._decide()
        forward = next((one for one in reversed(self._minus_inf) if one.phase == "forward"), None)
        if bad_loss and forward is not None and (self.origin is None or self.origin.phase == "backward"):
            return forward
        return self.origin or next((made.origin for made in self._made.latest() if made.origin), None)

    def _decide(self) -> None:
        """A node of the backward has ended: has it put out what it made?"""
        if (made := self._within.put_out()) is not None:
            self.origin = made
            self._made.clear()

    def forgive(self) -> None:
        """Nothing of what was put out so far was used by the step."""
        self._within = NodeValues()
        self.origin = None
        self._made.clear()
        self._minus_inf.clear()

    def _inputs(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        given = [t for t in pytree.tree_leaves(put_in(func, args, kwargs)) if isinstance(t, Tensor)]
        values = list(filter(is_inexact, given)) or [t for t in given if t.dtype != torch.bool]  # 0/0 of whole numbers
        lost = args[:1] if func.overloadpacket.__name__ in _OVERWRITES_SELF else ()
        return [t for t in values if not any(t is one for one in lost)]

    def _look(
        self, func: Any, args: Any, kwargs: Any, out: Any, inputs: list[Tensor], spoilt: dict[int, Places], node: Any,
        divisor: Divisor | None,
    ) -> None:  # fmt: skip
        name = aten_name(func)
        tensors = [t for t in pytree.tree_leaves(put_out(func, out)) if isinstance(t, Tensor)]
        if "empty" in name or func.namespace in _COMMUNICATION:
            # A bad value that comes in from another rank is seen there; what fills an empty tensor may not be seen.
            for tensor in tensors:
                kept = StorageWeakRef(tensor.untyped_storage())  # so that its address stands for no other
                received = func.namespace in _COMMUNICATION
                creator = None if received else _Creator(module=self.module(), line=user_line())
                self._empty[kept.cdata] = (kept, creator)
            return
        if self._within.follow(inputs, tensors):
            return
        if func.is_view and name != "lift_fresh":  # the same values under another shape
            for made in self._made.of(inputs):
                for view in tensors:
                    self._made.add(view, made)
            return
        written = name == "lift_fresh" or written_down(args, kwargs)
        for tensor in tensors:
            if not is_finite(tensor) and self._judge(name, tensor, inputs, spoilt, node, divisor, written=written):
                return

    def _judge(
        self, name: str, tensor: Tensor, inputs: list[Tensor], spoilt: dict[int, Places], node: Any,
        divisor: Divisor | None, *, written: bool,
    ) -> bool:  # fmt: skip
        """Look at one output that is not finite; True when no further output need be looked at."""
        found = places(tensor)
        minus_only = _is_minus_inf(found)
        quiet = node is None and not torch.is_grad_enabled()
        bad = {id(t): places(t, limit=0) for t in inputs if t is not tensor and not is_finite(t)} | spoilt
        bad_inputs = [t for t in inputs if id(t) in bad]
        history = self._made.of(bad_inputs)
        known = {id(t) for t in bad_inputs if self._made.has(t)}
        if any(not _is_minus_inf(held) and t not in known for t, held in bad.items()):
            # An input was NaN or +inf already: its maker was looked at when it was made, or no operator of aten was.
            maker = self._unseen_maker(inputs, known, node)
            if quiet:
                self._made.add(tensor, _Made(origin=maker))
                return False
            self.origin = maker
            return True
        origin = min((made.origin for made in history if made.origin), key=self._number, default=None)
        new = found.nan or all(map(_is_minus_inf, bad.values()))  # else an infinity that was known is passed on
        carried = any(held.nan for held in bad.values())  # a NaN that no operator was seen to make
        if origin is None and new and not carried and inputs and not (bad and minus_only):
            origin = self._as_origin(name, tensor, inputs, found, node, divisor)
            product = name in PRODUCTS or (name == "mul" and not found.inf)  # 0 times -inf; else a mask may be meant
            self.bad_input = self._brought(bad_inputs, known, history) if product else None
        if quiet and not minus_only and inputs and not (bad and not new):
            # A metric, or a target: it is to blame only where something with a gradient is made of it.
            self._made.add(tensor, _Made(origin=origin))
        elif not bad and written:  # put there on purpose, as a mask or a bound; to blame where a NaN comes of it
            origin = None if minus_only else self._as_origin(name, tensor, inputs, found, node, divisor)
            self._made.add(tensor, _Made(origin=origin))
        elif minus_only or not new:
            batch = self._brought(bad_inputs, known, history)
            self._made.add(tensor, _Made(origin=origin, batch=batch))
            if origin is None and minus_only and name in _OF_NOTHING and not quiet:
                origin = self._as_origin(name, tensor, inputs, found, node, divisor)
            self._minus_inf += [origin] if origin is not None and not quiet else []
        elif inputs and origin is not None and node is not None and not self.modules:
            self._within.add(node, origin, tensor)
        elif inputs:
            self.origin = origin
            self._made.clear()
        return self.origin is not None

    def _brought(self, bad: list[Tensor], known: set[int], history: list[_Made]) -> Tensor | None:
        """What the batch itself has brought of the `bad` inputs, as it is or computed with."""
        own = [t for t in bad if id(t) not in known and self._is_input(t)]
        return next((t for t in [*own, *(made.batch for made in history)] if t is not None), None)

    def _unseen_maker(self, inputs: list[Tensor], known: set[int], node: Any) -> Origin | None:
        """The origin of an input that came out of a kernel which aten does not see."""
        if self._transformed:
            return None  # the weights of a function transform are no parameters that are known
        for tensor in inputs:
            if id(tensor) in known or is_finite(tensor):
                continue
            if id(tensor) in self._names or (tensor.is_leaf and tensor.requires_grad) or self._is_input(tensor):
                return None  # weights and batches are looked at by themselves
            kept, creator = self._empty.get(tensor.untyped_storage()._cdata, (None, None))
            if kept is not None and creator is None:
                return None  # it came from another rank
            if creator is None and self.modules:
                creator = _Creator(module=self.module(), line=user_line())
            if creator is None:
                return None  # it came in with the loop's own code
            found = places(tensor)
            rows, positions, tokens, padding = batch_places(self._calls(), self._call, tensor, found)
            return Origin(
                module=creator.module, op=UNSEEN, phase="backward" if node is not None else "forward",
                dtype=dtype_name(tensor.dtype), rows=rows, positions=positions, tokens=tokens,
                values=found.in_words, padding=padding, line=creator.line,
            )  # fmt: skip
        return None

    def _is_input(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()._cdata
        given = [t for call in self._calls() for t, _ in call.versions]
        plain = (t for t in given if t.layout == torch.strided and not is_functorch_wrapped_tensor(t))
        return any(t.untyped_storage()._cdata == storage for t in plain)

    def _as_origin(
        self, name: str, tensor: Tensor, inputs: list[Tensor], found: Places, node: Any, divisor: Divisor | None
    ) -> Origin:
        module, line, gradient_of = self._blamed(node)
        of_loop = node is None and not self.modules
        rows, positions, tokens, padding = batch_places(self._calls(), self._call, tensor, found, of_loop=of_loop)
        backward = node is not None or gradient_of is not None
        self.after_backward = self._ran_backward and not (backward or self.modules)
        peak = max((places(t, limit=0).peak for t in inputs), default=None)
        origin = Origin(
            module=module, op=f"aten.{name}", phase="backward" if backward else "forward",
            dtype=dtype_name(tensor.dtype), rows=rows, positions=positions, tokens=tokens,
            values=found.in_words, peak=peak, padding=padding, tensor=gradient_of, line=line,
            divisor=divisor and divisor.zeros, divisor_by_batch=divisor and divisor.by_batch, shape=list(tensor.shape),
        )  # fmt: skip
        self._numbered.append((origin, self._term))
        return origin

    def _number(self, origin: Origin) -> int:
        """In the order in which they were seen; what no operator of aten made comes first."""
        return next((n for n, (one, _) in enumerate(self._numbered) if one is origin), -1)

    def term_of(self, origin: Origin | None) -> objective.Place | None:
        """The term of the objective that it lies in, where a replay has computed that."""
        return next((term for one, term in self._numbered if one is origin), None)

    def _blamed(self, node: Any) -> tuple[str | None, str | None, str | None]:
        """Module, source line, and the parameter whose gradient is being summed up, for an operator run by `node`."""
        if node is None:
            summed = self.summed()
            if summed is not None:
                return summed.rpartition(".")[0], None, summed
            self._term = objective.running.get()
            return self.module(), self.line(), None
        gradient_of = self._names.get(id(getattr(node, "variable", None)))  # over micro-steps, or in a hook
        if gradient_of is not None:
            return gradient_of.rpartition(".")[0], user_line(), gradient_of
        number, here = node._sequence_nr(), threading.get_ident()
        # What a checkpoint recomputes in the thread of the backward has numbers of that thread.
        order = (here, self._home) if self.modules else (self._home, here)
        creator = next((c for thread in order if (c := self._creators.get((thread, number)))), None)
        self._term = creator.term if creator else None
        if creator is None:
            return None, user_line(), None
        in_python = isinstance(node, BackwardCFunction)  # a backward of the user's own
        return creator.module, (user_line() if in_python else None) or creator.line, None

    def place_of(self, node: Any) -> tuple[str | None, str | None]:
        """Line and module in which the operator of an autograd node was called in what was watched."""
        creator = self._creators.get((self._home, node._sequence_nr()))
        return (creator.line, creator.module) if creator else (None, None)

    def _node(self) -> Any:
        """The autograd node that runs, but for that whose hook has begun the watch: None in a forward."""
        node = torch._C._current_autograd_node()
        return None if node is self._around else node

    def entered(self, name: str) -> None:
        self._transformed = self._transformed or peek_interpreter_stack() is not None
        self._call += not self.modules and self._node() is None
        self._ran_backward &= self._node() is not None
        if not self.layers:  # on the way to the first module that puts something out
            autocast = Autocast.now().dtype
            self._outside = self._outside if self.modules else autocast
            self.inside = autocast if autocast != self._outside else None
        self.modules.append(name)

    def left(self, name: str, output: Any) -> None:
        if name in self.modules:  # those that raised within it have not come back
            del self.modules[len(self.modules) - 1 - self.modules[::-1].index(name) :]
        if not self.measures_layers:
            return
        with _disable_current_modes():  # what looks at an output is no operator of the step
            self._measure(name, output)

    def _measure(self, name: str, output: Any) -> None:
        for tensor in leaves_of(output)[:1]:
            transformed = isinstance(tensor, Tensor) and is_functorch_wrapped_tensor(tensor)  # has no value to read
            if isinstance(tensor, Tensor) and not transformed and is_inexact(tensor) and tensor.numel():
                found = places(tensor, limit=0)
                self.layers.append(Layer(module=name, peak=found.peak, nonfinite=found.count))


def _is_minus_inf(found: Places) -> bool:
    """Alone."""
    return not (found.nan or found.inf)
