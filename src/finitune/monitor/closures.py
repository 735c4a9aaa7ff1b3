"""Steps that are given a closure: whether the gradients that it leaves pass the gate, or those of before the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from finitune.monitor.gate import Gate
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.gradient_versions import gradients_now
from finitune.monitor.probes.optimizers import BeforeStep, skips_whole_call
from finitune.monitor.probes.torch_calls import is_transformed_now


class Here(Protocol):
    """What the present thread is doing."""

    in_closure: bool


class ClosureSteps:
    """`guarded` calls a method so that no exception of ours reaches the training loop."""

    def __init__(self, gate: Gate, here: Here, guarded: Callable[..., Any]) -> None:
        self._gate, self._here, self._guarded = gate, here, guarded

    def begins(self, watched: Watched, closure: Any, *, guards: bool) -> Callable[..., Any]:
        """The closure, passing the gate each time it has computed gradients, which it does not within a transform. An
        optimizer of the program's own may use those of before it, as one that climbs first: these pass before.
        """
        watched.before, watched.gated = watched.update.before_step() if guards else None, False
        if watched.fresh and skips_whole_call(watched.optimizer()) and watched.update.gradients():
            watched.gated, watched.first_gradients = True, []
            self._guarded(self._gate.opens, watched, skippable=False, runs=True)
            if watched.kept is not None:
                watched.first_gradients = [(p, g.detach().clone()) for p, g in watched.update.gradients()]

        def gated(*args: Any, **kwargs: Any) -> Any:
            if is_transformed_now():
                return closure(*args, **kwargs)
            self._here.in_closure = True
            first = not watched.evaluations  # a backward may have run before the step
            before = watched.left_by_closure if first else gradients_now(watched.parameters())
            try:
                result = closure(*args, **kwargs)
            finally:
                self._here.in_closure = False
            watched.evaluations += 1
            # As it is taken once more: with what the only evaluation returned, which has left the gradients.
            watched.arguments = ((lambda: result,), {}) if watched.evaluations == 1 else ((), {})
            if not watched.gated:
                watched.gated = watched.fresh or gradients_now(watched.parameters()) != before
                if watched.gated:
                    self._guarded(self._gate.opens, watched, skippable=False)
            elif watched.before is not None and not watched.discarded:
                self._guarded(self._evaluated_again, watched, watched.before)
            return result

        return gated

    def _evaluated_again(self, watched: Watched, before: BeforeStep) -> None:
        """Where the step has made weights bad with gradients of before, what is evaluated there is not to blame."""
        if watched.first_gradients is None or not before.spoilt():
            self._gate.evaluated_again(watched)

    def ended(self, watched: Watched) -> None:
        """The step has returned, or raised."""
        if watched.evaluations:
            left = gradients_now(watched.parameters())
            if not watched.gated and left != watched.left_by_closure:  # computed by the optimizer itself
                self._guarded(self._gate.opens, watched, skippable=False, runs=True)
            watched.fresh, watched.left_by_closure = False, left
