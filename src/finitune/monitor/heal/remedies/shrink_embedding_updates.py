"""The last steps are taken again, and the later ones too, with smaller updates of the input embedding alone.

For runs that the embedding leads into divergence: a lower rate would slow down every other tensor with it. Needs: an
input embedding that is trained as a whole beside other tensors, and what `heal.past` needs: a torch optimizer without
a scaler around it, room for copies of weights and optimizer state; of several ranks each holds the whole model. Price:
the steps that are taken again, the copies, a copy of the embedding at each step, and an embedding that learns slower.
Undo: weights and state are those of the bad step, bit for bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from finitune.monitor.heal.bounds import SHRINK
from finitune.monitor.heal.cure import Case, Cure, Unable
from finitune.monitor.heal.past import Past
from finitune.monitor.heal.retaken import before_steps, is_borne, kept_by, mebibytes, orders_for, outcome, take_bounded
from finitune.monitor.probes.embeddings import input_embedding
from finitune.monitor.probes.optimizers import parameters_of
from finitune.reports.sentences import counted

action = "rolled-back"
repeat = take_bounded
FACTORS = (0.1, 0.01)
"""The first is alpha of GLM-130B (arXiv 2210.02414, section 3.4), which bounds gradients; here it is the update."""


def cure(case: Case) -> Cure:
    """Raises Unable."""
    past = kept_by(case)
    if past.bound is not None:
        raise Unable("steps are bounded already")
    place, other = _places(case)
    before = before_steps(case, past)
    factor = next((f for f in FACTORS if is_borne(before, _outcome(case, past, place, f))), None)
    if factor is None:
        raise Unable(f"{FACTORS[-1]:g} times the updates of the embedding is not borne either")
    steps, spelling = counted(len(past.steps), "step"), f"{SHRINK}={place},{factor}"
    name, instead = (case.inquiry.modules.name(parameters_of(case.watched.optimizer())[n]) for n in (place, other))
    orders = orders_for(past, bound=spelling)
    return Cure(
        text=f"the last {steps} taken again, with {factor:g} times the update of {name}",
        price=f"{steps} computed twice, {mebibytes(past):.1f} MiB of copies, an embedding that learns slower",
        targets=frozenset({name}),
        change=partial(past.again, times=1.0, bound=spelling),
        placebo=partial(past.again, times=1.0, bound=f"{SHRINK}={other},{factor}"),
        instead=f"that of {instead} instead",
        apply=lambda: repeat(case.watched, orders),
        orders=orders,
    )


def _outcome(case: Case, past: Past, place: int, factor: float) -> Any:
    return outcome(case, past.again(case.inquiry.setting(), 1.0, bound=f"{SHRINK}={place},{factor}"))


def _places(case: Case) -> tuple[int, int]:
    """Of the embedding, and of the largest other tensor, among what is trained."""
    own = parameters_of(case.watched.optimizer())
    embedding = None if case.watched.model is None else input_embedding(case.watched.model)
    place = next((n for n, p in enumerate(own) if embedding is not None and p is embedding.weight), None)
    others = [n for n in range(len(own)) if n != place]
    if place is None or not others:
        raise Unable("no input embedding is trained beside other tensors")
    return place, max(others, key=lambda n: own[n].numel())
