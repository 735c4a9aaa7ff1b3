"""The calls of watched models, collected into micro-steps: what each backward closes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.capture.carried_state import CarriedStates
from finitune.monitor.capture.outputs import output_tensors
from finitune.monitor.capture.step import Call, MicroStep, objective_of
from finitune.monitor.loss_graph import objective
from finitune.monitor.loss_graph.objective import Objective
from finitune.monitor.probes import given_weights
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.user_code.ended_frames import remembered

MAX_CALLS = 16
"""Model calls kept since the last backward; older ones belong to an evaluation with gradients on. Of a longer chain, in
which each call is fed by the one before, more are kept, but how they are fed is read only where the loss is known to be
bad: that would cost more than a recurrent cell. Where the step before had one, the next is taken for one as well.
"""
NO_LOSS = "backward was given no single number"
LONGEST_CHAIN = 512
"""Calls that feed one another, beyond which none is kept."""
STAY_PACKED = 2
"""Steps of optimizers within which a graph that was packed by hooks of the program may be used: an actor's and its
critic's.
"""


class Calls:
    """The calls of watched models since the last backward, which makes a micro-step of them."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._depth = 0
        self._within: Call | None = None
        """The call within the present one that is running now."""
        self._packed = 0
        """Steps until no tensors of before may be packed by hooks of the program any more."""
        self._chain = 0
        """How many calls in a row were fed by earlier ones, as those of a recurrent cell are."""
        self._is_long = False
        """They were so many in the step before that nothing was read of them."""
        self._carried = CarriedStates()
        self._untracked = 0
        """Calls without gradients since the last backward."""
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
        given = _tensors_in(args, kwargs) if torch.is_grad_enabled() else None
        self._untracked += given is None and self._depth == 1
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
        chain = self._chain
        self._chain = chain + 1 if any(tensor.grad_fn is not None for tensor in given) else 0
        if self._chain >= LONGEST_CHAIN:
            return None
        if self._calls and self._chain >= (1 if self._is_long else MAX_CALLS):
            call = self._calls[-1].next(module, args, kwargs, given)
        else:
            if chain < MAX_CALLS:
                self._feed()
            # Those of a longer chain that has ended were never read, and hold its graph.
            self._calls = [call for call in self._calls if call.is_read]
            call = Call.of(module, args, kwargs, self._calls)
            call.carried = self._carried.before(module)
            del self._calls[: 1 - MAX_CALLS]
        if given_weights.are_computed(module):
            call.unfed = "its weights are computed in the step, and given to it by functional_call"
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
        if self._depth == 0:
            self._packed = STAY_PACKED

    def micro_step(self, roots: list[Tensor], earlier: Sequence[Call] = ()) -> MicroStep:
        """What the backward of `roots` closes; a retained graph may use `earlier` calls of the step once more."""
        micro, self._untracked = MicroStep(untracked=self._untracked), 0
        scalars = [root.detach() for root in roots if root.numel() == 1]
        if scalars:
            micro.root = torch.stack([scalar.reshape(()) for scalar in scalars]).sum() if len(scalars) > 1 else (
                scalars[0].reshape(()).clone()
            )  # fmt: skip
        self._depth, self._within = 0, None  # a forward that was interrupted has not come back
        chain, self._chain = self._chain, 0
        self._is_long = chain >= MAX_CALLS
        try:
            if self._packed:
                raise objective.NotReadable("its tensors are packed by hooks")
            if len(roots) != 1:
                raise objective.NotReadable(NO_LOSS)
            if chain >= MAX_CALLS and (micro.root is None or not self._is_worth_reading(chain, micro.root)):
                raise objective.NotReadable(f"more than {MAX_CALLS} calls of modules feed one another")
            self._feed()
            with _disable_current_modes():  # a live watch must not see how nodes are read
                calls, read = self._objective(roots[0], [*earlier, *self._calls])
            if micro.root is None:
                micro.derived, micro.unreadable = read, NO_LOSS
            else:
                micro.objective = read
            # Calls whose outputs the loss does not use need not be run again.
            micro.calls = _used(calls, read)
            used = {id(call) for call in micro.calls}
            self._calls = [call for call in self._calls if used.isdisjoint({id(c) for c in (call, *call.within)})]
        except (objective.NotReadable, AttributeError, RuntimeError) as error:
            micro.unreadable = str(error)
            micro.calls, self._calls = self._calls[:MAX_CALLS], []
        return micro

    def _is_worth_reading(self, chain: int, loss: Tensor) -> bool:
        """How a long chain is fed: not where the loss is finite, or where to look at it is to wait for its device."""
        return chain < LONGEST_CHAIN and loss.device.type == "cpu" and not is_finite(loss)

    def _feed(self) -> None:
        for n, call in enumerate(self._calls):
            if not call.is_read:
                call.feed(self._calls[:n])

    def _objective(self, root: Tensor, calls: list[Call]) -> tuple[list[Call], objective.Objective]:
        """The loss in terms of the calls within wrappers where it can be read so, else of those of the wrappers.

        Raises NotReadable.
        """
        inner = [each for call in calls for each in call.within or [call]]
        if any(call.unfed is not None for call in inner) or not any(call.within for call in calls):
            return calls, objective_of(root, calls)
        try:
            read = objective_of(root, inner)
        except objective.NotReadable:
            return calls, objective_of(root, calls)
        if read.constant:
            with suppress(objective.NotReadable):
                whole = objective_of(root, calls)
                if not whole.constant:
                    return calls, whole
        return inner, read

    def step_ended(self, number: int, optimizers: set[int]) -> None:
        """One of the `optimizers` has stepped. With several models a call may wait for the backward of another: what
        was called before each of them has stepped belongs to no later one, nor do evaluations.
        """
        self._packed = max(self._packed - 1, 0)
        for call in self._calls:
            call.stepped.add(number)
        self._calls = [call for call in self._calls if not optimizers <= call.stepped]
        if optimizers == {number}:
            self._depth, self._within, self._chain = 0, None, 0


def _tensors_in(*values: Any) -> list[Tensor]:
    """The tensors in these containers, of whatever class; it runs at each call of a model, and pytree is slower."""
    try:
        return list(_given(values))
    except RecursionError:  # one that holds itself
        return [leaf for leaf in leaves_of(values) if isinstance(leaf, Tensor)]


def _given(values: Any) -> Iterator[Tensor]:
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
