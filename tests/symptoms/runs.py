"""Series for the tests of symptoms: healthy noise, and a symptom asked step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from finitune.chapter import Sighting
from finitune.series import Series

NAN, INF = float("nan"), float("inf")


def series(values: Iterable[float], *, every: int = 1) -> Series:
    """The values at steps `every`, 2 `every`, ..."""
    known = [float(value) for value in values]
    return Series(range(every, every * len(known) + 1, every), known)


def noise(steps: int, *, level: float = 2.0, spread: float = 0.1, seed: int = 0):
    """Log-normal about `level`."""
    return level * np.exp(spread * np.random.default_rng(seed).standard_normal(steps))


def seen(see: Callable[..., Sighting | None], judged: Series, **others: Series) -> list[Sighting]:
    """What it says as the values of `judged` come one by one, and the others with them."""
    out: list[Sighting] = []
    for step, _ in judged.pairs():
        sighting = see(judged.until(step), **{name: other.until(step) for name, other in others.items()})
        if sighting is not None:
            assert sighting.step == step
            assert sighting.level != "suspicion" or sighting.confirm
            out.append(sighting)
    return out


def levels(sightings: Iterable[Sighting]) -> list[tuple[int, str]]:
    return [(sighting.step, sighting.level) for sighting in sightings]
