"""The loss as a function of the model's outputs, read off the autograd graph just before backward.

A training loop computes its loss in its own code, which cannot be called again. The graph from the loss back to
the model's outputs can: its nodes keep targets, dimensions and factors. Only those small things are kept here,
never logits. Whoever runs the result compares it with the loss that was seen, so a wrong reading is noticed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.loss_graph import node_operators
from finitune.monitor.loss_graph.added_constants import spelled, with_constant
from finitune.monitor.loss_graph.joins import REST, runs_without_graph
from finitune.monitor.loss_graph.known_values import MANY, MAX_NODES, SCALES, Edge, Value, into, known_values, positive
from finitune.monitor.loss_graph.loss_operators import (
    CHOOSES,
    DROPS_CONSTANT,
    JOINS,
    LINEAR,
    OPERATORS,
    PASSES_THROUGH,
    PRODUCTS,
    SEVERAL,
    WEIGHT,
    Kept,
    NotReadable,
)
from finitune.monitor.loss_graph.node_operators import name_of
from finitune.monitor.probes.finite import is_bad_but_for_masks, is_finite
from finitune.monitor.probes.graph_nodes import output_number

LEAST_BYTES = {"cpu": 2**26}
"""Constants of a loss are kept up to this size whatever the batch, by type of device; on any other up to 64 KiB."""
SUMS = ("AddBackward0", "SubBackward0")
RESULT = "result"
"""Among what is kept of a term: its value, of an operator whose node does not keep one of the operands."""
IN_PART = "in part"
"""Among what is kept of a term: its result is known where it is not NaN, and the constant is one number."""
Path = tuple[int, ...]
"""Where a term stands in its objective: the places among the inputs, from the loss on."""
Place = tuple["Input", Path]
"""A term: the whole objective, and where in it the term stands."""
running: ContextVar[Place | None] = ContextVar("running", default=None)
"""The term that a rebuild computes now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One operator between the model and the loss: its node's name, the constants that the node keeps, its inputs.

    Plain data, so that a capture can hold it. See `Input`.
    """

    name: str
    kept: Kept
    inputs: tuple[Input, ...]

    @property
    def operand(self) -> Input:
        """Its one input with a graph; None where it has none, or several."""
        with_graph = [each for each in self.inputs if each is not None]
        return with_graph[0] if len(with_graph) == 1 else None

    @property
    def times(self) -> float | None:
        """The number that its operand is multiplied with, or divided by; None for any other operator."""
        constants = [number for side in ("left", "right") if (number := self.kept.get(side)) is not None]
        if self.name not in SCALES or len(constants) != 1 or torch.as_tensor(constants[0]).numel() != 1:
            return None
        number = float(constants[0])
        if self.name == "MulBackward0":
            return number
        return 1.0 / number if self.kept.get("left") is None and number else None


Input = Term | int | None
"""Another term; a model output, by its `number_of`; None for an operand without a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss in terms of the model's outputs; whole where the loss is an output itself."""

    whole: Term | int
    uses: frozenset[int]
    targets: tuple[Tensor, ...] = ()
    """Class indices that the loop's own cross entropies compare with."""
    constant: bool = False
    """A term without a graph was added, as in `total = 0; total += loss`. The graph does not keep it: taken as 0."""
    recovers: bool = False
    """Some operand is found only when the step is run again as it was."""
    weights: bool = False
    """The loop uses trained tensors in it by itself."""
    first: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict[int, tuple[Tensor, Tensor]])
    """Of terms with a kept result, by identity: the known part of it in the first rebuild, and the constant found."""
    spelled: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Of the same, constants that the code held which ran then."""

    def rebuild(self, outputs: Mapping[int, Tensor], times: float | None = None) -> Tensor:
        """The loss again, or that many times it; `outputs` maps the number of an output to its new value.

        The first rebuild must be of the step as it was: it finds the operands that no node kept. Raises NotReadable
        where a later one needs such an operand in a place where the output of the model was not finite.
        """
        try:
            if times is None:
                return self._value(self.whole, outputs, ())
            whole = _scaled(self.whole, times)  # the loss alone may be finite where the scaled one overflows
            return self._value(self.whole, outputs, ()) * times if whole is None else self._value(whole, outputs, ())
        finally:
            running.set(None)

    @property
    def knows_constants(self) -> bool:
        """Each operand that no node kept has been found by a rebuild."""
        return all(id(term) in self.first or id(term) in self.spelled for term in self._with_result())

    def look_up_constants(self, *, cheap: bool = True) -> None:
        """Before the code of this step goes on: find them where it spells them, for a rebuild with other weights. With
        `cheap` nothing is computed for it.
        """
        for term in self._with_result():
            if id(term) not in self.first and IN_PART not in term.kept:
                constant = spelled(term.kept[RESULT], cheap=cheap)
                if constant is not None:
                    self.spelled[id(term)] = constant

    def _with_result(self) -> list[Term]:
        return [term for term in terms(self.whole) if RESULT in term.kept] if self.recovers else []

    @property
    def only_here(self) -> bool:
        """It is computed with weights of the loop's own, or with an operator that no file may name."""
        return self.weights or any(term.name not in OPERATORS for term in terms(self.whole))

    @property
    def factor(self) -> float:
        """The numbers that the loop has multiplied its loss with, and not divided it by, last of all."""
        found, of = 1.0, self.whole
        while isinstance(of, Term) and (times := of.times) is not None:
            found, of = found * times, of.operand
        return found

    def bad_operand(self) -> tuple[str, Tensor, Place] | None:
        """What the loop's own code has put into the loss and is not finite: what it is, the tensor, and the term that
        it is an operand of. Operands that no node kept are known after a rebuild. What holds -inf alone may be a mask,
        and comes last; of terms within each other, as those of a weighted mean, the operand of the innermost is first.
        """
        found = list(self.bad_operands())
        certain = [one for one in found if is_bad_but_for_masks(one[1])]
        outermost = certain[0][2][1] if certain else ()
        inner = [one for one in certain if one[2][1][: len(outermost)] == outermost]
        return max(inner, key=lambda one: len(one[2][1]), default=found[0] if found else None)

    def bad_operands(self) -> Iterator[tuple[str, Tensor, Place]]:
        """All of them, the outermost first."""
        for path, term in placed(self.whole):
            name = term.name.removesuffix("0").removesuffix("1").removesuffix("Backward")
            for what in ("input", "target", "weight", "pos_weight"):
                given = term.kept.get(what)
                if isinstance(given, Tensor) and not is_finite(given):
                    yield f"{what} of {name}", given, (self.whole, path)
            known, constant = self.first.get(id(term), (None, None))
            if known is not None and constant is not None:
                bad = torch.isfinite(known) & ~torch.isfinite(constant)
                if term.name in CHOOSES:  # a mask
                    bad &= constant != -math.inf
                if bad.any():
                    yield f"operand of {name}", constant, (self.whole, path)
            for side in ("left", "right"):
                kept = term.kept.get(side)
                if isinstance(kept, Tensor) and kept.is_floating_point() and _is_bad_operand(term.name, side, kept):
                    yield f"operand of {name}", kept, (self.whole, path)

    def _value(self, of: Input, outputs: Mapping[int, Tensor], path: Path) -> Any:
        if not isinstance(of, Term):
            return None if of is None else outputs[of]
        apply = OPERATORS[of.name][1] if of.name in OPERATORS else node_operators.apply
        inputs = [self._value(each, outputs, (*path, place)) for place, each in enumerate(of.inputs)]
        running.set((self.whole, path))
        value = apply(of.kept, *inputs)
        if RESULT not in of.kept:
            return value
        if id(of) in self.spelled and id(of) not in self.first:
            return value + self.spelled[id(of)]
        return with_constant(id(of), value, of.kept[RESULT], self.first, in_part=IN_PART in of.kept)


def read(root: Tensor, outputs: set[int], *, most_bytes: int = 2**30, exact: bool = False) -> Objective:
    """Read the objective whose value is `root`; `outputs` holds the numbers of the model outputs.

    Constants that are together larger than `most_bytes` are not kept. With `exact` a constant that only shifts the
    value is kept too, where `root` shows it: another module is called with that value. Raises NotReadable.
    """
    if root.grad_fn is None:
        raise NotReadable("the loss has no graph")
    room = max(most_bytes, LEAST_BYTES.get(root.device.type, 2**16))
    walk = _Walk(outputs=outputs, room=room, known=known_values(root.grad_fn, outputs), exact=exact)
    whole = _read(root.grad_fn, root.output_nr, walk, linear=True, value=root.detach if exact else None)
    if not walk.uses and not walk.weights:
        raise NotReadable("the loss does not come from a call of the model that was seen")
    return Objective(
        whole=whole, uses=frozenset(walk.uses), targets=tuple(walk.targets), constant=walk.constant,
        recovers=walk.recovers, weights=walk.weights,
    )  # fmt: skip


def placed(of: Input, path: Path = ()) -> Iterator[tuple[Path, Term]]:
    """The term itself and all that it is made of, from the loss on, each with where it stands."""
    if isinstance(of, Term):
        yield path, of
        for place, each in enumerate(of.inputs):
            yield from placed(each, (*path, place))


def terms(of: Input) -> Iterator[Term]:
    """The term itself and all that it is made of, from the loss on."""
    return (term for _, term in placed(of))


def same_form(a: Input, b: Input) -> bool:
    """True for two objectives of the same operators, whatever the constants are. What one takes from a module that was
    called, the other may have computed within compiled code, where no call is seen.
    """
    if not isinstance(a, Term) or not isinstance(b, Term):
        return (a is None) == (b is None)
    return a.name == b.name and len(a.inputs) == len(b.inputs) and all(map(same_form, a.inputs, b.inputs))


def edge(tensor: Tensor) -> Edge:
    """The node that made `tensor`."""
    return tensor.grad_fn, tensor.output_nr


def node_at(root: Edge, place: Place) -> Any:
    """The node of the same term, at the same path, in the graph that ends at `root`; None where there is none."""
    node, output = root
    term: Input = place[0]
    for step in (*place[1], None):
        while node is not None and name_of(node) in PASSES_THROUGH:
            node, output = node.next_functions[output]
        if node is None or not isinstance(term, Term) or name_of(node) != term.name:
            return None
        if step is None or step >= len(node.next_functions):
            return node if step is None else None
        node, output = node.next_functions[step]
        term = term.inputs[step]
    return None


def term_at(place: Place | None) -> Term | None:
    return dict(placed(place[0])).get(place[1]) if place is not None else None


def is_factor(place: Place | None) -> bool:
    """It is a product in the loss."""
    term = term_at(place)
    return term is not None and term.name == "MulBackward0"


def number_of(tensor: Tensor) -> int | None:
    """The number under which `tensor` is known to `read`; None for a tensor without a graph."""
    return None if tensor.grad_fn is None else output_number(tensor.grad_fn, tensor.output_nr)


def packs_now() -> bool:
    """True where hooks on saved tensors are set now, as when activations are offloaded; older torch does not say."""
    top: Any = getattr(sys.modules["torch._C._autograd"], "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None  # noqa: FBT003


@dataclass(slots=True, kw_only=True)
class _Walk:
    """What is met on the way from the loss to the model's outputs."""

    outputs: set[int]
    room: int
    known: dict[Edge, Value]
    """What nodes came to in the step, where something that took it has kept that."""
    exact: bool = False
    uses: set[int] = field(default_factory=set[int])
    targets: list[Tensor] = field(default_factory=list[Tensor])
    constant: bool = False
    recovers: bool = False
    weights: bool = False
    nodes: int = 0

    def restore(self, before: _Walk) -> None:
        """As it was, but for the nodes that were counted: what is walked twice is no less work."""
        self.uses, self.targets, self.room = set(before.uses), list(before.targets), before.room
        self.constant, self.recovers, self.weights = before.constant, before.recovers, before.weights


def _scaled(whole: Term | int, times: float) -> Term | None:
    """That many times a product with a number; None for what is none."""
    if not isinstance(whole, Term) or whole.name != "MulBackward0" or whole.times is None:
        return None
    side = "left" if whole.kept["left"] is not None else "right"
    return replace(whole, kept={**whole.kept, side: whole.kept[side] * times})


def _read(
    node: Any, output: int, walk: _Walk, *, linear: bool, covered: bool = False, value: Value | None = None
) -> Term | int:
    """`value` gives what this node came to in the step, where what takes it has kept that. With `linear` a constant
    that is added here shifts the loss alone, or, with `covered`, a term above whose result is known.
    """
    number = output_number(node, output)
    if number in walk.outputs:
        walk.uses.add(number)
        return number
    value = value or walk.known.get((node, output))
    walk.nodes += 1
    if walk.nodes > MAX_NODES:
        raise NotReadable(MANY)
    name = name_of(node)
    if name in PASSES_THROUGH:
        child, place = node.next_functions[output]
        return _read(child, place, walk, linear=linear, covered=covered, value=value)
    derived = node_operators.kept_of(node, output) if name not in OPERATORS else None
    if name not in OPERATORS and derived is None:
        raise NotReadable(name)
    edges = node.next_functions
    kept: dict[str, Any] = {}
    with_graph = sum(child is not None for child, _ in edges)
    bare = with_graph < len(edges)
    if (name in DROPS_CONSTANT and (len(edges) == 1 or bare)) or (name in JOINS and bare):
        result = None if value is None or (linear and not walk.exact) else value()
        in_part = isinstance(value, partial) and value.func is positive
        if name == "CatBackward0" and runs_without_graph(edges) > 1:
            raise NotReadable("parts without a graph between others, whose sizes the graph does not keep")
        if name in JOINS:
            kept["shape"] = list(node._input_metadata[0].shape)
        if result is not None and name in JOINS and not in_part:
            kept[REST] = result.detach()
        elif result is not None and name not in JOINS:
            kept[RESULT], walk.recovers = result.detach(), True
            kept |= {IN_PART: True} if in_part else {}
        elif linear:
            walk.constant = walk.constant or not covered
        else:
            raise NotReadable(f"a term without a graph within {name}, which the graph does not keep")
    passes = name in LINEAR and (with_graph == 1 or name not in ("MulBackward0", "DivBackward0"))
    below = (linear or RESULT in kept) and passes
    again = None if below or name not in SUMS else value
    before = walk if again is None else replace(walk, targets=list(walk.targets), uses=set(walk.uses))
    try:
        inputs = _inputs(edges, into(node, name, edges, value), walk, linear=below, covered=RESULT in kept or covered)
    except NotReadable:
        # A constant beneath is found from the result of this term where only sums lie between.
        result = None if again is None else again()
        if result is None:
            raise
        walk.restore(before)
        kept[RESULT], walk.recovers = result.detach(), True
        kept |= {IN_PART: True} if isinstance(value, partial) and value.func is positive else {}
        inputs = _inputs(edges, into(node, name, edges, value), walk, linear=True, covered=True)
    kept |= OPERATORS[name][0](node) if derived is None else derived
    kept |= {"part": output} if name in SEVERAL else {}
    if name == WEIGHT:
        walk.weights = True
        return Term(name=name, kept=kept, inputs=())
    walk.room -= sum(value.nbytes for value in _tensors(kept)) if kept else 0
    if walk.room < 0:
        raise NotReadable("constants that are larger than the batch")
    if name.startswith("NllLoss"):
        walk.targets.append(kept["target"])
    return Term(name=name, kept=kept, inputs=inputs)


def _inputs(
    edges: Sequence[Edge], values: Sequence[Value | None], walk: _Walk, *, linear: bool, covered: bool
) -> tuple[Input, ...]:
    return tuple(
        None if child is None else _read(child, output, walk, linear=linear, covered=covered, value=value)
        for (child, output), value in zip(edges, values, strict=True)
    )


def _is_bad_operand(name: str, side: str, operand: Tensor) -> bool:
    """NaN is bad anywhere; an infinity where it is a factor, or divided: what is added or compared may be a mask, and a
    division by it gives 0.
    """
    is_factor = name in PRODUCTS or (name == "DivBackward0" and side == "left")
    return not is_finite(operand) if is_factor else bool(operand.isnan().any())


def _tensors(kept: Kept) -> list[Tensor]:
    values = [each for value in kept.values() for each in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, Tensor)]
