"""The optimizers of this process that are watched, each with what is known of it between its steps."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.capture.step import Capture, MicroStep
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.gradient_versions import ALL, NO_GRADIENTS, SOME, Gradients, gradients_now
from finitune.monitor.probes.measurement import Measured, Reading, Unclipped
from finitune.monitor.probes.modules import Modules, unwrapped
from finitune.monitor.probes.optimizer_state import are_small
from finitune.monitor.probes.optimizers import MOST_KEPT, BeforeStep, each_parameter, parameters_of
from finitune.monitor.probes.ranks import Group, connected, group_of
from finitune.monitor.probes.references import reference_to
from finitune.monitor.probes.update import Update, update_of

RECENT = 20


@dataclass(slots=True, kw_only=True, eq=False)
class Watched:
    """One optimizer. `number` counts from 1 in the order in which they were made."""

    number: int
    optimizer: Callable[[], Any]
    born: int
    """The step of the process at which it was made."""
    modules: Modules
    engine: Any = None
    last: int = 0
    """The step of the process that it took last."""
    steps: int = 0
    """How often its step was seen to be called."""
    before_gradients: Gradients = NO_GRADIENTS
    """As they were when the present backward began."""
    after_gradients: Gradients = NO_GRADIENTS
    """As the last backward left them: of `_looked_at` parameters."""
    is_wrapped: bool = False
    """Its step is called by another optimizer, which does more around it."""
    at_backward: tuple[Tensor, int] | None = None
    """The first parameter that has a gradient, and its version when the last backward ended."""
    emptied: bool = False
    """Its gradients were set to None since the last backward."""
    measured_by_loop: bool = False
    """Clipping or a loss scale has read and written the gradients of the last step: not each is looked at then."""
    gradients_written: bool = False
    """In the present step something else than torch's clipping and scaling has changed them since."""
    edits_gradients: bool = False
    """It has done so in a step."""
    left_gradients: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]])
    """Parameters and copies of what the last backward left them, where the loop edits gradients."""
    unclipped: Unclipped | None = None
    before: BeforeStep | None = None
    evaluations: int = 0
    """Of the closure, in the step that runs or ran last."""
    gated: bool = False
    """In a step with a closure: its gradients have passed the gate."""
    fresh: bool = False
    """A backward has changed its gradients since its last step with a closure."""
    first_gradients: list[tuple[Tensor, Tensor]] | None = None
    """Where the gradients of before its closure have passed the gate: copies, unless they are large."""
    left_by_closure: Gradients = NO_GRADIENTS
    """As the last step with a closure left them."""
    evaluation: BadEvaluation | None = None
    kept: BeforeStep | None = None
    """Of a step whose update may be bad although its gradients are not, by arithmetic that is not known."""
    steps_write_gradients: bool = False
    """An own optimizer writes to the gradients, as one that centres them does."""
    ungated: tuple[BeforeStep, tuple[int, ...]] | None = None
    """Of a call for which no parameter has a gradient, with `versions`: it is a step where it writes, as of what it is
    given.
    """
    reading: Reading | None = None
    """Of the step that runs now."""
    deferred: Deferred | None = None
    stepping_on: list[MicroStep] = field(default_factory=list[MicroStep])
    discarded: bool = False
    """The last step was."""
    undone: bool = False
    """The last step was taken back after it, as this rank has seen what it made of the weights."""
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """Of the step that runs now, where it was given no closure."""
    given: bool = False
    """A remedy has given the bad step that runs now other gradients, and it is taken."""
    skips_by_hand: bool = False
    """The loop itself skipped the bad step that came last."""
    shares: tuple[int, Tensor | None] = (-1, None)
    bad_in_a_row: int = 0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT))
    settling_from: float | None = None
    past: Any = None
    """In mode `heal` the last steps, `finitune.monitor.heal.past.Past`."""
    written_by_loop: list[Any] = field(default_factory=list)
    """Weights, its own and others, that statements of the loop may write after its step."""
    finite_weights: bool = False
    """All that it trains was found finite once."""
    versions_left: tuple[int, ...] = ()
    """Of what it trains, as its last step left them."""
    is_measured_by_others: bool = False
    """Weights that another optimizer trains to another end measure its loss, as a critic does that of a generator."""
    mismatched: bool = False
    """A wrong reduction was reported."""
    _looked_at: int = ALL
    _update: Update | None = None
    _group: Group | None = None
    _at_step: Group | None = None
    _model: weakref.ref[nn.Module] | None = None

    @property
    def update(self) -> Update:
        """Read when it is first needed: a class may set its attributes after torch's constructor has returned."""
        if self._update is None:
            self._update = update_of(self.optimizer(), self.engine)
        return self._update

    def stands_for(self, update: Any) -> None:
        """There is no optimizer: `update` stands for the loop's own."""
        self._update = update

    def versions(self) -> tuple[int, ...]:
        """Of what it trains: how often each was written to."""
        return tuple([parameter._version for parameter in self.parameters()])

    def backward_begins(self) -> None:
        self._at_step = None
        self.before_gradients = NO_GRADIENTS if self.emptied else gradients_now(self.parameters())
        self.emptied = False

    def backward_ended(self) -> bool:
        """Whether it has changed gradients. To look at each is slow, and not done where clipping will."""
        self._keep_gradients()
        first = next((p for p in self.each_parameter() if p.grad is not None), None)
        self.at_backward = None if first is None else (first, first._version)
        begins = self.measured_by_loop and self.before_gradients == NO_GRADIENTS
        self._looked_at = SOME if begins else ALL
        self.after_gradients = gradients_now(self.parameters(), self._looked_at)
        return first is not None if begins else self.after_gradients != self.before_gradients

    def look_for_edits(self, *, scaled: bool) -> None:
        """Before a step: has the loop changed its gradients since the backward by more than clipping? Where these were
        `scaled` that is not known.
        """
        left, clip = self.after_gradients, self.unclipped
        self.measured_by_loop = clip is not None or scaled
        self.gradients_written = False
        if not scaled:
            now = gradients_now(self.parameters(), self._looked_at)
            self.gradients_written = clip is None and now != left
            self.edits_gradients |= self.gradients_written or (clip is not None and clip.is_among_edits(left, now))

    @property
    def has_moved(self) -> bool:
        """The loop has written its weights since the last backward, as one that takes gradients beside them does."""
        return self.at_backward is not None and self.at_backward[0]._version != self.at_backward[1]

    def _keep_gradients(self) -> None:
        """What the loop may spoil is copied, where that is cheap."""
        pairs = [(p, p.grad) for p in self.parameters() if p.grad is not None] if self.edits_gradients else []
        cheap = not self.group.sharded and are_small([g for _, g in pairs], MOST_KEPT)
        self.left_gradients = [(p, g.detach().clone()) for p, g in pairs] if cheap else []

    def wrote_last(self, parameter: Tensor) -> bool:
        """The parameter was finite once, and nothing but steps of this optimizer has been seen to write to it since."""
        left = zip(self.parameters(), self.versions_left, strict=False)
        return self.finite_weights and any(p is parameter and p._version == version for p, version in left)

    def has_spoilt(self) -> bool:
        """Trained weights are not finite, and it wrote them last. Waits for the device."""
        return any(not is_finite(p) and self.wrote_last(p) for p in self.parameters())

    @property
    def group(self) -> Group:
        """The ranks that train it; looked for at its first backward, when the model is wrapped."""
        known = self._group
        if known is None or (known.size == 1 and connected() and torch.distributed.get_world_size() > 1):
            # ZeRO 3 gives its optimizer flat copies, and shards the parameters of the model.
            parts = [*self.parameters(), *(self.model.parameters() if self.model is not None else ())]
            self._group = known = group_of(parts, self.optimizer())
        return self._at_step or known

    def step_begins(self) -> None:
        """Nothing is known of it; whether all ranks come to it is found out once."""
        self.discarded, self.reading, self._at_step = False, None, None
        group = self.group
        self._at_step = group.at_a_step() if group.size > 1 else None

    def reduced_over(self, handle: Any, *, gradients: bool) -> None:
        """The loop sums over this process group by itself, so that these are the ranks that train it; where it sums the
        `gradients`, each rank has all of them.
        """
        if not self.group.known or (gradients and not self.group.replicated):
            size = torch.distributed.get_world_size(handle)
            self._group = Group(handle=handle, size=size, replicated=gradients)

    @property
    def model(self) -> nn.Module | None:
        """The user's own model that holds most of what it trains; None for loose tensors."""
        known = self._model() if self._model else None
        if known is None:
            owners = self.modules.owners(self.parameters())
            known = unwrapped(owners[0]) if owners else None
            self._model = None if known is None else weakref.ref(known)
        return known

    @model.setter
    def model(self, model: nn.Module | None) -> None:
        self._model = None if model is None else weakref.ref(model)

    def each_parameter(self) -> Iterator[Any]:
        optimizer = self.optimizer()
        if optimizer is None:
            return iter(())
        return each_parameter(optimizer) if hasattr(optimizer, "param_groups") else iter(self.update.parameters())

    def parameters(self) -> list[Any]:
        return list(self.each_parameter())

    @property
    def deciding(self) -> set[int]:
        """How many ranks decide on its steps together, 0 where it is not known which; empty before the first step."""
        return set() if self._group is None else {self._group.size if self._group.known else 0}

    def count(self) -> int:
        """How many parameters it trains."""
        groups = getattr(self.optimizer(), "param_groups", None)
        return len(self.parameters()) if groups is None else sum(len(group["params"]) for group in groups)

    def gradients(self) -> list[Tensor]:
        return [gradient for _, gradient in self.update.gradients()]

    @property
    def name(self) -> str:
        """`AdamW`, and for the second and later ones `AdamW (optimizer 2)`."""
        kind = type(self.optimizer()).__name__
        return kind if self.number == 1 else f"{kind} (optimizer {self.number})"


@dataclass(slots=True, kw_only=True)
class Deferred:
    """A step whose verdict was acted on by the device, and is read on the host a step later."""

    measured: Measured
    values: Any
    """`Readback`."""
    capture: Capture
    parameters: Sequence[Any]
    """To which the measured gradients belong, in the same order."""
    schedules: list[tuple[Any, dict[str, Any], list[Any]]] = field(default_factory=list)
    """Schedules that advanced before the verdict was known, with their state and rates before."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEvaluation:
    """Of a closure, in a step that LBFGS has begun with a finite one. It may be a trial that a line search turns back
    from; where the weights are not finite after the step, it was not.
    """

    reading: Reading
    capture: Capture
    weights: BeforeStep
    """As they were in it."""


class Optimizers:
    """Looked up by the optimizer itself; keeps none alive."""

    def __init__(self) -> None:
        self.edit_gradients = False
        """The program has changed gradients of one between backward and step, and may change those of one that it makes
        anew.
        """
        self._known: dict[int, Watched] = {}
        self._count = 0
        self._decided: set[int] = set()
        """How many ranks have decided together on the steps of those that are gone."""

    def __iter__(self) -> Iterator[Watched]:
        for identity, known in list(self._known.items()):
            if known.optimizer() is None:
                self._decided |= known.deciding
                self._known.pop(identity, None)  # another thread may have done so
            else:
                yield known

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def numbers(self) -> set[int]:
        """Of those that are there."""
        return {known.number for known in self}

    def decided_together(self, world: int) -> bool:
        """All ranks of `world` have decided on every step of each."""
        return self._decided.union(*(known.deciding for known in self._known.values())) <= {world}

    @property
    def several(self) -> bool:
        """More than one is known, though some may be gone; looks at none of them."""
        return len(self._known) > 1

    def get(self, optimizer: Any) -> Watched | None:
        known = self._known.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def add(self, optimizer: Any, *, born: int, modules: Modules, engine: Any = None) -> Watched:
        known = self.get(optimizer)
        if known is None:
            before = self._replaced_by(optimizer, born)
            self._count += 1
            known = Watched(
                number=self._count, optimizer=reference_to(optimizer), born=born, modules=modules, engine=engine,
                edits_gradients=self.edit_gradients,
            )  # fmt: skip
            if before is not None:
                known.last, known.born = before.last, before.born
            self._known[id(optimizer)] = known
        return known

    def _replaced_by(self, optimizer: Any, now: int) -> Watched | None:
        """One of the same parameters that has stepped in the present step: the new one steps in its place."""
        held = {id(p) for p in parameters_of(optimizer)}
        recent = (one for one in self if one.last == now > 0)
        return next((one for one in recent if held and {id(p) for p in one.parameters()} == held), None)

    def training(self, parameters: Iterable[Any]) -> list[Watched]:
        """Those that train any of these."""
        ids = {id(p) for p in parameters}
        return [one for one in self if any(id(p) in ids for p in one.parameters())]

    def remove(self, optimizer: Any) -> None:
        self._known.pop(id(optimizer), None)

    def first(self) -> Watched | None:
        return next(iter(self), None)


def step_of(watched: Watched, now: int, stepping_on: Sequence[MicroStep], *, new: bool | None = None) -> int:
    """The number of the step that `watched` is about to take, where the process is at step `now`.

    Optimizers that step by turns on one batch, or on the same backward, take the same step. One that has stepped in
    this step already begins the next, as does one that was made since this step began, or that steps for the first
    time on a backward of its own. `new`: the program shows whether it steps in the pass of the loop after the last
    step, or in the same one; None where it does not show.
    """
    used = any(micro.used for micro in stepping_on)
    shared = used or new is False
    if watched.last == now or (new and not used) or (watched.born >= now and now > 0 and not shared):
        return now + 1
    if watched.last == 0 and now > 1 and stepping_on and not shared:
        return now + 1
    return max(now, 1)
