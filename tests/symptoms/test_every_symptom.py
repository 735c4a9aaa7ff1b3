"""What holds for every symptom: any numbers may come, and the window is the state."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.chapter import ask, sightings, symptoms
from finitune.series import Series
from finitune.signals import CATALOGUE, SIGNALS

SEE = {f"{name}.{asked}": function for name, chapter in symptoms().items() for asked in ("see", "review")
       if (function := chapter.function(asked))}  # fmt: skip
ODD = (math.nan, math.inf, -math.inf, 0.0, -1.0, 1.0, 1e-300, 1e308)


def run(seed: int, steps: int, *, odd: float = 0.0) -> list[dict[str, float]]:
    """Numbers of a run, step by step: every signal, on its schedule, some of them odd, and a change halfway."""
    rng = random.Random(seed)
    out: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        change = 30.0 if step > steps // 2 and seed % 2 else 1.0
        row: dict[str, float] = {}
        for signal in CATALOGUE:
            every = 16 if "16th" in signal.cost else 64 if "64th" in signal.cost else 1
            if step % every:
                continue
            value = change * math.exp(0.1 * rng.gauss(0, 1))
            if signal.unit == "0 or 1" or signal.unit == "count":
                value = float(rng.random() < 0.1)
            row[signal.name] = rng.choice(ODD) if rng.random() < odd else value
        out.append(row)
    return out


def add(signals: dict[str, Series], step: int, row: dict[str, float]) -> None:
    for name, value in row.items():
        signals.setdefault(name, Series()).add(step, value)


@pytest.mark.parametrize("seed", range(6))
def test_the_answer_is_the_same_live_and_on_a_recording(seed: int) -> None:
    rows = run(seed, 220, odd=0.02 * (seed % 3))
    live: dict[str, Series] = {}
    whole: dict[str, Series] = {}
    for step, row in enumerate(rows, start=1):
        add(whole, step, row)
    for step, row in enumerate(rows, start=1):
        add(live, step, row)
        if step % 7 == 0 or step > 200:
            recorded = {name: series.until(step) for name, series in whole.items()}
            assert repr(sightings(live)) == repr(sightings(recorded))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 200))
def test_any_numbers_may_come(seed: int, odd: float, steps: int) -> None:
    signals: dict[str, Series] = {}
    for step, row in enumerate(run(seed, steps, odd=odd), start=1):
        add(signals, step, row)
    for name, see in SEE.items():
        answer = ask(see, signals)
        assert answer.broken is None, (name, answer.broken)
        for sighting in answer.results:
            assert sighting.level in ("note", "suspicion", "incident")
            assert sighting.level != "suspicion" or sighting.confirm, name
            assert sighting.text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ODD), st.floats(0.5, 2.0)), max_size=120))
def test_any_values_of_one_series_may_come(values: list[float]) -> None:
    signals = {name: Series(range(1, len(values) + 1), values) for name in SIGNALS}
    for name, see in SEE.items():
        answer = ask(see, {key: series for key, series in signals.items() if series})
        assert answer.broken is None, (name, answer.broken)


def test_nothing_is_said_of_a_signal_that_has_no_new_value() -> None:
    """A measurement of step 64 is judged at step 64, not at each step until the next one."""
    signals = {"loss": Series([64], [2.0]), "targets": Series([64], [0.0])}
    assert [sighting.symptom for sighting in sightings(signals)] == ["targets-missing"]
    signals["loss"].add(65, 2.0)
    assert sightings(signals) == []


def test_a_signal_that_is_read_later_than_others_is_judged_at_its_own_step() -> None:
    signals = {"loss": Series([1, 2], [2.0, math.nan]), "lr": Series([1, 2, 3], [1e-3] * 3)}
    assert sightings(signals) == []
    assert [sighting.symptom for sighting in sightings(signals, step=2)] == ["nonfinite-loss"]


def test_statistics_alone_are_never_an_incident() -> None:
    """Whatever finite loss and gradient norm do, nothing is certain."""
    for seed in range(5):
        rng = random.Random(seed)
        signals = {"loss": Series(), "grad_norm": Series()}
        for step in range(1, 300):
            level = 10.0 ** rng.choice([0, 0, 0, 0, 3, 9]) if step > 100 else 1.0
            signals["loss"].add(step, level * rng.random())
            signals["grad_norm"].add(step, level * rng.random())
            assert all(sighting.level != "incident" for sighting in sightings(signals))


@pytest.mark.parametrize("seed", range(3))
def test_stays_below_a_suspicion_in_a_healthy_run(seed: int) -> None:
    """A rate that warms up and goes to zero, norms that fall, a loss scale that settles and is tried again."""
    rng = random.Random(seed)
    signals: dict[str, Series] = {}
    steps, scale = 1200, 2.0**20
    for step in range(1, steps + 1):
        rate = 1e-4 * min(step / 50, (1 + math.cos(math.pi * step / steps)) / 2)
        lost = scale > 2.0**14
        loss = (1.2 + 3 * math.exp(-step / 200)) * math.exp(0.1 * rng.gauss(0, 1))
        norm = (0.5 + 4 * math.exp(-step / 80)) * math.exp(0.4 * rng.gauss(0, 1))
        row = {"loss": loss, "grad_norm": math.inf if lost else norm, "lr": rate, "loss_scale": scale}
        row |= {"skipped": float(lost), "zero_gradients": 0.0, "repeated_batch": 0.0, "kept_gradients": 0.0}
        if not lost:
            row["clip_factor"] = min(1.0, 1 / norm)
        if step % 16 == 0:
            row |= {"update_ratio": 3 * rate * math.exp(0.1 * rng.gauss(0, 1)), "moved": 0.99, "unmoved_tensors": 0.0}
        if step % 64 == 0:
            row |= {"targets": 900.0, "frozen_moved": 0.0, "embedding_outlier": 1.5 + step / 500}
            row |= {"activation_peak": 300 + step, "attention_logit": 2 + step / 50}
        add(signals, step, row)
        assert [one for one in sightings(signals) if one.level != "note"] == []
        scale = scale / 2 if lost else scale * (2 if step % 300 == 0 else 1)
