"""What must be kept of a step so that it can be run again: references to its batches, and the state around them.

Nothing is copied on a healthy step but the random number state (5 KB on a CPU).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from finitune.monitor.probes.finite import is_finite
from finitune.monitor.replay import objective
from finitune.monitor.replay.carried_state import Carried, CarriedStates
from finitune.monitor.replay.ended_frames import EndedFrame, GivenGradient, remembered
from finitune.monitor.replay.objective import Edge, Objective, edge
from finitune.monitor.replay.outputs import output_tensors
from finitune.monitor.replay.padding import Padding, padding_of
from finitune.monitor.replay.surroundings import Autocast, Randomness

MASKS = ("attention_mask", "mask", "padding_mask", "key_padding_mask", "src_key_padding_mask", "attn_mask")
"""Names of a mask over tokens. Those of a key padding mask are True where padding is."""
MAX_CALLS = 16
"""Model calls kept since the last backward; older ones belong to an evaluation with gradients on. Of a longer chain, in
which each call is fed by the one before, more are kept, but how they are fed is read only where the loss is known to be
bad: that would cost more than a recurrent cell.
"""
LONGEST_CHAIN = 512
"""Calls that feed one another, beyond which none is kept."""
MAX_LOOSE_BYTES = 2**26
"""Of what a loss that is computed without a module is made of, beside the trained tensors."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One call of the model with gradients on: its arguments by reference, and the state before it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    randomness: Randomness | None
    """None: it goes on from where the call before has left it."""
    autocast: Autocast
    versions: tuple[tuple[Tensor, int], ...]
    outputs: dict[int, int] = field(default_factory=dict[int, int])
    """Number of an output, see `objective.number_of`, -> its place among the flattened output tensors."""
    fed: dict[int, Objective] = field(default_factory=dict[int, Objective])
    """Arguments that are computed of the outputs of earlier calls, by their place among the flattened ones."""
    edges: dict[int, Edge] = field(default_factory=dict[int, Edge])
    """Their nodes, in a step that is watched operator by operator."""
    unfed: str | None = None
    """Why an argument with a graph is none of these."""
    within: list[Call] = field(default_factory=list["Call"])
    """Calls with token ids that a wrapper makes of what it was given: those are what the experiments change."""
    carried: tuple[Carried, ...] = ()
    """What the module carries from call to call, as it was before this one."""
    callers: tuple[EndedFrame, ...] = ()
    """The functions that called it and have ended since, innermost first."""
    range_flag: Any = None
    """See `finitune.monitor.probes.out_of_range`."""

    @staticmethod
    def of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], before: list[Call]) -> Call:
        """`before` are the calls of whose outputs its arguments may be computed."""
        call = Call(
            module=module, args=args, kwargs=kwargs, randomness=Randomness.now(), autocast=Autocast.now(), versions=()
        )  # fmt: skip
        call.feed(before)
        return call

    def next(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> Call:
        """The one after it in a long chain, with random numbers and autocast as this one leaves them: nothing is read
        of what it was `given`; see `feed`.
        """
        return Call(
            module=module, args=args, kwargs=dict(kwargs), randomness=None, autocast=self.autocast,
            versions=tuple((tensor, tensor._version) for tensor in given),
        )  # fmt: skip

    def feed(self, before: list[Call]) -> None:
        """Read how its arguments are computed of the outputs of the calls before it, while their graph is there."""
        if self.overwritten:
            self.unfed = "it was overwritten in place"
            return
        leaves, shape = pytree.tree_flatten((self.args, self.kwargs))
        watched = bool(_get_current_dispatch_mode_stack())
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                try:
                    with _disable_current_modes():
                        self.fed[place], leaves[place] = _read(leaf, before, exact=True), None
                    self.edges |= {place: edge(leaf)} if watched else {}
                except (objective.NotReadable, AttributeError, RuntimeError) as error:
                    self.unfed = str(error)
        # Own containers: a trainer may pop keys from its batch.
        self.args, self.kwargs = pytree.tree_unflatten(leaves, shape)
        self.versions = tuple((leaf, leaf._version) for leaf in leaves if isinstance(leaf, Tensor))

    @property
    def nbytes(self) -> int:
        """Of its tensors."""
        return sum(tensor.nbytes for tensor, _ in self.versions)

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

    def mask(self) -> Tensor | None:
        """The mask over the token ids, nonzero where a token is seen: by name, or the first input of zeros and ones in
        the shape of the ids. None where none is recognised, which does not mean that there is none.
        """
        ids = self.token_ids()
        named = next(((n, m) for n in MASKS if isinstance(m := self.kwargs.get(n), Tensor)), None)
        if named is not None:
            return (named[1] == 0) if "padding" in named[0] else named[1]
        if ids is None:
            return None
        for tensor, _ in self.versions:
            if tensor is not ids and tensor.shape == ids.shape and bool(((tensor == 0) | (tensor == 1)).all()):
                return tensor
        return None

    def padding(self) -> Padding | None:
        """None also where an input may be a mask of another form: which tokens are seen is then not known."""
        ids, mask = self.token_ids(), self.mask()
        return None if ids is None or (mask is None and self.may_be_masked()) else padding_of(ids, mask)

    def may_be_masked(self) -> bool:
        """True where some input beside token ids and labels may be a mask."""
        ids, labels = self.token_ids(), self.kwargs.get("labels")
        return any(tensor is not ids and tensor is not labels and tensor.dim() >= 2 for tensor, _ in self.versions)


@dataclass(slots=True, kw_only=True)
class MicroStep:
    """One backward and the model calls since the one before."""

    calls: list[Call] = field(default_factory=list[Call])
    root: Tensor | None = None
    """The loss as the loop handed it to backward, a copy of shape []; scaled where the loop scales."""
    objective: Objective | None = None
    unreadable: str | None = None
    """Why there is no objective."""
    scale: Tensor | None = None
    """By which a GradScaler multiplied the loss, shape [1], on the device."""
    scaler: Any = None
    """That GradScaler."""
    touched: set[int] = field(default_factory=set[int])
    """Numbers of the optimizers whose gradients it changed."""
    given: GivenGradient | None = None
    """None where it is that of a loss."""
    used: bool = False
    """Some optimizer has stepped on it."""

    def computed(self, root: Tensor) -> Iterator[tuple[Objective, Edge]]:
        """What the loop's own code computes in it, and where its graph ends: the loss, and in a step that is watched
        what it calls modules with.
        """
        if self.objective is not None:
            yield self.objective, edge(root)
        for call in self.calls:
            yield from ((call.fed[place], end) for place, end in call.edges.items())


@dataclass(slots=True, kw_only=True)
class Capture:
    """Everything of one optimizer step: its micro-steps in order."""

    micro_steps: list[MicroStep] = field(default_factory=list[MicroStep])
    began: Randomness | None = None
    """Random numbers as the step before has left them, without those of numpy."""

    @property
    def roots(self) -> list[Tensor]:
        """The losses as backward was given them, each of shape []."""
        return [micro.root for micro in self.micro_steps if micro.root is not None]

    @property
    def scale(self) -> Tensor | None:
        """By which a GradScaler multiplied the losses, shape [1]."""
        return next((micro.scale for micro in self.micro_steps if micro.scale is not None), None)

    def forget_callers(self) -> None:
        """The verdict on the step is acted on: what its functions held is kept no longer, whoever keeps its batch."""
        for micro in self.micro_steps:
            micro.given = None
            for call in micro.calls:
                call.callers = ()

    @property
    def complete(self) -> bool:
        return bool(self.micro_steps) and all(m.calls and m.root is not None for m in self.micro_steps)

    @property
    def runnable(self) -> str | None:
        """None when the step can be run again, else why not."""
        if not self.micro_steps:
            return "no backward was seen in this step"
        for micro in self.micro_steps:
            if (not micro.calls and micro.objective is None) or micro.root is None:
                return micro.unreadable or "the model was called in a way that was not seen"
            if micro.objective is None:
                return f"the loss is computed outside the model in a way that cannot be run again ({micro.unreadable})"
            unfed = next((call.unfed for call in micro.calls if call.unfed is not None), None)
            if unfed is not None:
                return f"what a module was called with is computed in a way that cannot be run again ({unfed})"
            if any(call.overwritten for call in micro.calls):
                return "the batch was overwritten in place after the forward"
        return None

    @property
    def only_asked(self) -> bool:
        """No backward has put gradients into parameters: the loop has, of what it asked for or computed by itself."""
        return not any(micro.touched for micro in self.micro_steps)

    @property
    def nbytes(self) -> int:
        """Of its batches."""
        return sum(call.nbytes for micro in self.micro_steps for call in micro.calls)


class Calls:
    """The calls of watched models since the last backward, which makes a micro-step of them."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._depth = 0
        self._within: Call | None = None
        """The call within the present one that is running now."""
        self._packed = False
        self._chain = 0
        """How many calls in a row were fed by earlier ones, as those of a recurrent cell are."""
        self._carried = CarriedStates()
        self.fruitful: set[int] = set()
        """Identities of the modules whose calls put out something with a graph."""

    def __len__(self) -> int:
        return len(self._calls)

    def kept(self) -> list[Call]:
        """The calls since the last backward."""
        return list(self._calls)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """A model is called: what is kept of it; None for one without gradients, or within one that has token ids."""
        self._depth += 1
        given = list(_given((args, kwargs))) if torch.is_grad_enabled() else None
        if given is None or any(map(_is_batched, given)):
            return None  # vmap calls it, and its tensors have no values outside
        if objective.packs_now() and (self._depth > 1 or any(tensor.grad_fn is not None for tensor in given)):
            return None
        if self._depth > 1:
            outer = self._calls[-1] if self._calls else None
            if outer is None or self._within or "input_ids" in outer.kwargs or "input_ids" not in kwargs:
                return None
            self._within = Call.of(module, args, kwargs, [])
            outer.within = [*outer.within, self._within][-MAX_CALLS:]
            return self._within
        self._chain = self._chain + 1 if any(tensor.grad_fn is not None for tensor in given) else 0
        if self._chain >= LONGEST_CHAIN:
            return None
        if self._chain >= MAX_CALLS and self._calls:
            call = self._calls[-1].next(module, args, kwargs, given)
        else:
            # Those of a longer chain that has ended were never read, and hold its graph.
            self._calls = [call for call in self._calls if call.randomness is not None]
            call = Call.of(module, args, kwargs, self._calls)
            call.carried = self._carried.before(module)
            del self._calls[: 1 - MAX_CALLS]
        self._calls.append(call)
        return call

    def end(self, call: Call | None, output: Any, *, failed: bool) -> None:
        """The call has returned, or raised."""
        self._depth -= 1
        if call is self._within:
            self._within = None
        if call is None or failed:
            return
        if self._depth == 0:
            call.callers = remembered(call.randomness)
        for place, tensor in enumerate(output_tensors(output)):
            number = objective.number_of(tensor)
            if number is not None:
                call.outputs.setdefault(number, place)
                self.fruitful.add(id(call.module))

    def packs(self) -> None:
        """Hooks on saved tensors are set: outside the model they are not read, as what they keep can be taken once."""
        self._packed = self._packed or self._depth == 0

    def micro_step(self, roots: list[Tensor], earlier: Sequence[Call] = ()) -> MicroStep:
        """What the backward of `roots` closes; a retained graph may use `earlier` calls of the step once more."""
        micro = MicroStep()
        scalars = [root.detach() for root in roots if root.numel() == 1]
        if scalars:
            micro.root = torch.stack([scalar.reshape(()) for scalar in scalars]).sum() if len(scalars) > 1 else (
                scalars[0].reshape(()).clone()
            )  # fmt: skip
        self._depth, self._within = 0, None  # a forward that was interrupted has not come back
        packed, self._packed = self._packed, False
        chain, self._chain = self._chain, 0
        try:
            if packed:
                raise objective.NotReadable("its tensors are packed by hooks")
            if len(roots) != 1 or micro.root is None:
                raise objective.NotReadable("backward was given no single number")
            if chain >= MAX_CALLS:
                self._feed_all(chain, micro.root)
            with _disable_current_modes():  # a live watch must not see how nodes are read
                calls, read = self._objective(roots[0], [*earlier, *self._calls])
            micro.objective = read
            # Calls whose outputs the loss does not use need not be run again.
            micro.calls = _used(calls, read)
            used = {id(call) for call in micro.calls}
            self._calls = [call for call in self._calls if used.isdisjoint({id(c) for c in (call, *call.within)})]
        except (objective.NotReadable, AttributeError, RuntimeError) as error:
            micro.unreadable = str(error)
            micro.calls, self._calls = self._calls[:MAX_CALLS], []
        return micro

    def _feed_all(self, chain: int, loss: Tensor) -> None:
        """Read how the calls of a long chain are fed. Raises NotReadable where that is not worth its cost: the loss is
        finite, or lies on a device where to look at it is to wait.
        """
        if chain >= LONGEST_CHAIN or loss.device.type != "cpu" or is_finite(loss):
            raise objective.NotReadable(f"more than {MAX_CALLS} calls of modules feed one another")
        for n, call in enumerate(self._calls):
            if call.randomness is None:  # made by `next`
                call.feed(self._calls[:n])

    def _objective(self, root: Tensor, calls: list[Call]) -> tuple[list[Call], objective.Objective]:
        """The loss in terms of the calls within wrappers where it can be read so, else of those of the wrappers.

        Raises NotReadable.
        """
        inner = [each for call in calls for each in call.within or [call]]
        if any(call.unfed is not None for call in inner) or not any(call.within for call in calls):
            return calls, _read(root, calls)
        try:
            read = _read(root, inner)
        except objective.NotReadable:
            return calls, _read(root, calls)
        if read.constant:
            with suppress(objective.NotReadable):
                whole = _read(root, calls)
                if not whole.constant:
                    return calls, whole
        return inner, read

    def forget(self) -> None:
        """What was called before belongs to no later backward."""
        self._calls, self._depth, self._within, self._chain = [], 0, None, 0


def _given(values: Any) -> Iterator[Tensor]:
    """The tensors in these containers."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict | tuple | list):
            yield from _given(value)


def _is_batched(tensor: Tensor) -> bool:
    while is_functorch_wrapped_tensor(tensor) and not is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return is_batchedtensor(tensor)


def _used(calls: list[Call], loss: Objective) -> list[Call]:
    """Of the calls those that the loss is made of."""
    uses, used = set(loss.uses), list[Call]()
    for call in reversed(calls):
        if uses & call.outputs.keys():
            used.append(call)
            uses.update(*(each.uses for each in call.fed.values()))
    return used[::-1]


def _read(root: Tensor, calls: list[Call], *, exact: bool = False) -> Objective:
    outputs = {number for call in calls for number in call.outputs}
    most = 4 * sum(call.nbytes for call in calls) if calls else MAX_LOOSE_BYTES
    return objective.read(root, outputs, most_bytes=most, exact=exact)
