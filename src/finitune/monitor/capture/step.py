"""What must be kept of a step so that it can be run again: references to its batches, and the state around them.

Nothing is copied on a healthy step but the random number state (5 KB on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from finitune.monitor.capture.batch_objects import named_within, tensors_within
from finitune.monitor.capture.carried_state import Carried
from finitune.monitor.loss_graph import objective
from finitune.monitor.loss_graph.objective import Edge, Objective, edge
from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.probes.padding import Padding, padding_of
from finitune.monitor.probes.random_sources import state_kept
from finitune.monitor.probes.surroundings import Autocast, Randomness
from finitune.monitor.user_code.ended_frames import EndedFrame, GivenGradient

MASKS = ("attention_mask", "mask", "padding_mask", "key_padding_mask", "src_key_padding_mask", "attn_mask")
"""Names of a mask over tokens. Those of a key padding mask are True where padding is."""
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
    is_read: bool = True
    """How it is fed is known; its arguments hold no graph."""
    within: list[Call] = field(default_factory=list["Call"])
    """Calls with token ids that a wrapper makes of what it was given: those are what the experiments change."""
    carried: tuple[Carried, ...] = ()
    """What the module carries from call to call, as it was before this one."""
    sources: tuple[Callable[[], object], ...] = ()
    """What gives the sources of random numbers among its arguments the states back that they had before it."""
    callers: tuple[EndedFrame, ...] = ()
    """The functions that called it and have ended since, innermost first."""
    range_flag: Any = None
    """See `finitune.monitor.probes.out_of_range`."""
    stepped: set[int] = field(default_factory=set[int])
    """Numbers of the optimizers that have stepped since, while it waits for a backward."""

    def named_inputs(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors among its arguments, with where they stand: `input 0`, `pixel_values`, `input 1['mask']`."""
        named = [*((f"input {place}", value) for place, value in enumerate(self.args)), *self.kwargs.items()]
        for name, value in named:
            try:
                leaves = [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0]]
            except (ValueError, RecursionError):  # a class registered without the names of its parts; it holds itself
                leaves = [(f"[{place}]", leaf) for place, leaf in enumerate(leaves_of(value))]
            for within, leaf in leaves:
                if isinstance(leaf, Tensor):
                    yield name + within, leaf
                else:
                    yield from ((name + within + part, tensor) for part, tensor in named_within(leaf))

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
            module=module, args=args, kwargs=dict(kwargs), randomness=None, autocast=self.autocast, is_read=False,
            versions=tuple((tensor, tensor._version) for tensor in given),
        )  # fmt: skip

    def feed(self, before: list[Call]) -> None:
        """Read how its arguments are computed of the outputs of the calls before it, while their graph is there."""
        self.is_read = True
        if self.overwritten:
            self.unfed = "it was overwritten in place"
            return
        try:
            leaves, shape = pytree.tree_flatten((self.args, self.kwargs))
        except RecursionError:
            self.unfed, self.versions = "an argument of the model holds itself", versions_of([self.args, self.kwargs])
            return
        watched = bool(_get_current_dispatch_mode_stack())
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                try:
                    with _disable_current_modes():
                        self.fed[place], leaves[place] = objective_of(leaf, before, exact=True), None
                    self.edges |= {place: edge(leaf)} if watched else {}
                except (objective.NotReadable, AttributeError, RuntimeError) as error:
                    self.unfed = str(error)
        # Own containers: a trainer may pop keys from its batch.
        self.args, self.kwargs = pytree.tree_unflatten(leaves, shape)
        self.versions = versions_of(leaves)
        if self.randomness is not None:  # else it goes on from where the call before has left them too
            others = (leaf for leaf in leaves if not isinstance(leaf, Tensor))
            self.sources = tuple(back for leaf in others if (back := state_kept(leaf)) is not None)

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
    untracked: int = 0
    """Calls without gradients in between, as to generate text or to act."""
    root: Tensor | None = None
    """The loss as the loop handed it to backward, a copy of shape []; scaled where the loop scales."""
    objective: Objective | None = None
    unreadable: str | None = None
    """Why there is no objective."""
    derived: Objective | None = None
    """What the backward began from, where that was no loss and the loop gave it a gradient."""
    scale: Tensor | None = None
    """By which a GradScaler multiplied the loss, shape [1], on the device."""
    scaler: Any = None
    """That GradScaler."""
    touched: set[int] = field(default_factory=set[int])
    """Numbers of the optimizers whose gradients it changed."""
    given: GivenGradient | None = None
    """None where it is that of a loss."""
    users: set[int] = field(default_factory=set[int])
    """Numbers of the optimizers that have stepped on it."""

    @property
    def used(self) -> bool:
        """Some optimizer has stepped on it."""
        return bool(self.users)

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
    waiting: tuple[MicroStep, ...] = ()
    """All whose step is still to come, of whatever optimizer: one of them may have made a gradient that these were
    given.
    """

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
        self.waiting = ()
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


def versions_of(leaves: Iterable[Any]) -> tuple[tuple[Tensor, int], ...]:
    """The tensors at the ends of what a model is given, in objects too, each with how often it was written to."""
    held = [[leaf] if isinstance(leaf, Tensor) else tensors_within(leaf) for leaf in leaves]
    return tuple((tensor, tensor._version) for each in held for tensor in each)


def objective_of(root: Tensor, calls: Sequence[Call], *, exact: bool = False) -> Objective:
    """What `root` is of the outputs of these calls. `exact`: see `objective.read`. Raises NotReadable."""
    outputs = {number for call in calls for number in call.outputs}
    most = 4 * sum(call.nbytes for call in calls) if calls else MAX_LOOSE_BYTES
    return objective.read(root, outputs, most_bytes=most, exact=exact)
