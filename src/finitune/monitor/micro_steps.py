"""Which backward belongs to which optimizer, and which step it is.

A backward belongs to every optimizer whose gradients it changed. It waits until each of these has stepped on it or
has dropped its gradients; what all of them dropped, unused, was skipped by the loop itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from finitune.monitor.capture.step import Call, MicroStep
from finitune.monitor.probes.finite import values_of
from finitune.monitor.probes.surroundings import Randomness

MOST_ASKED = 16
"""Losses whose gradients were asked for, of one step: as many as a loop of many tasks has."""


def all_zero(gradients: Sequence[Tensor]) -> bool:
    """True where no gradient pushes; read on the host."""
    return not any(bool(values_of(gradient).any()) for gradient in gradients)


@dataclass(slots=True)
class Pending:
    """The backwards that wait for an optimizer, oldest first."""

    micro_steps: list[MicroStep] = field(default_factory=list[MicroStep])
    asked: list[MicroStep] = field(default_factory=list[MicroStep])
    """Losses whose gradients the loop has asked for since the last backward, to put them into parameters by itself."""
    spent: MicroStep | None = None
    """What an optimizer has just made its first step on, until the next backward: one that is made now may as well."""
    began: Randomness | None = None
    """See `Capture.began`."""

    def begin(self, there: set[int]) -> None:
        """A backward is about to run: what touched no optimizer and was stepped on belongs to the past, and so does an
        optimizer that is not `there` any more.
        """
        for micro in self.micro_steps:
            micro.touched &= there
        self.micro_steps = [micro for micro in self.micro_steps if micro.touched or not micro.used]
        self.asked, self.spent = [], None

    def claim(self, number: int) -> None:
        """An optimizer is made now, and what it trains has gradients: those of the backwards that wait."""
        if not self.micro_steps and self.spent is not None:
            self.micro_steps = [self.spent]
        for micro in self.micro_steps:
            micro.touched.add(number)

    def ask(self, micro: MicroStep) -> None:
        self.asked = [*self.asked, micro][-MOST_ASKED:]

    def of(self, number: int) -> list[MicroStep]:
        """Those that changed gradients of this optimizer, or of none that is known: it may copy them elsewhere. Where
        no backward has run, the losses whose gradients were asked for.
        """
        return [m for m in self.micro_steps if number in m.touched or (not m.touched and not m.used)] or self.asked

    def calls(self) -> list[Call]:
        """Of the model, in what waits."""
        return [call for micro in (*self.micro_steps, *self.asked) for call in micro.calls]

    def stepped(self, number: int, on: Sequence[MicroStep], *, first: bool = False) -> None:
        """The optimizer has made its step on these, its `first` one or another."""
        self.asked = []
        self.began = Randomness.now(numpy=False)
        for micro in on:
            micro.users.add(number)
            micro.touched.discard(number)
        if on:  # without the batch, which is not to be kept
            self.spent = MicroStep(root=on[-1].root, scale=on[-1].scale, users=on[-1].users) if first else None
        self.micro_steps = [micro for micro in self.micro_steps if micro.touched or not micro.used]

    def used_by_others(self, number: int) -> set[int]:
        """The optimizers that have stepped on backwards which have left this one gradients as well."""
        return {user for micro in self.micro_steps if number in micro.touched for user in micro.users}

    def dropped(self, number: int) -> list[MicroStep]:
        """The gradients of this optimizer are set to zero; returns the backwards that nobody will use any more."""
        mine = [micro for micro in self.micro_steps if number in micro.touched]
        for micro in mine:
            micro.touched.discard(number)
        lost = [micro for micro in mine if not micro.touched and not micro.used]
        gone = {id(micro) for micro in mine if not micro.touched}
        self.micro_steps = [micro for micro in self.micro_steps if id(micro) not in gone]
        return lost

    def clear(self) -> None:
        self.micro_steps, self.asked = [], []
