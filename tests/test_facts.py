"""Facts survive the recording's JSON, and damaged facts become missing ones."""

from __future__ import annotations

import dataclasses
import json
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune import facts as module
from finitune.facts import Facts, Precision, TensorScan, TokenUse, Weights
from finitune.facts_json import facts_as_json, facts_from_json

small = st.integers(-(2**60), 2**60)


def of(hint: object) -> st.SearchStrategy:
    """Any value of a field's type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: of(hints[f.name]) for f in dataclasses.fields(hint)})
    if type(None) in args:
        return st.one_of(st.none(), *(of(arg) for arg in args if arg is not type(None)))
    if origin is np.ndarray:
        dtype = typing.get_args(args[1])[0]
        numbers = st.floats() if dtype is np.float64 else small
        return st.lists(numbers, max_size=5).map(lambda v: np.array(v, dtype=dtype))
    if origin is not None and issubclass(origin, typing.Mapping):
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is not None and issubclass(origin, typing.Sequence):
        return st.lists(of(args[0]), max_size=3)
    return {int: small, float: st.floats(), str: st.text(), bool: st.booleans()}[hint]


def same(one: object, other: object) -> bool:
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(of(Facts))
def test_round_trip_is_lossless(facts: Facts) -> None:
    text = json.dumps(facts_as_json(facts), allow_nan=False)
    assert same(facts_from_json(json.loads(text)), facts)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
groups = [f.name for f in dataclasses.fields(Facts)]
fields = sorted(
    {f.name for kind in vars(module).values() if dataclasses.is_dataclass(kind) for f in dataclasses.fields(kind)}
)


@given(st.dictionaries(st.sampled_from(groups), junk | st.dictionaries(st.sampled_from(fields), junk)))
def test_damaged_facts_become_missing_ones(data: dict) -> None:
    json.dumps(facts_as_json(facts_from_json(data)), allow_nan=False)


@pytest.mark.parametrize(
    "tokens",
    [7, [], {}, {"ids": 1}, {"ids": [[1], [2]], "counts": [1], "first": [1], "sequences": 1},
     {"ids": [10**30], "counts": [1], "first": [1], "sequences": 1},
     {"ids": [1], "counts": [1], "first": [1], "sequences": "many"}],
)  # fmt: skip
def test_one_broken_group_leaves_the_others(tokens: object) -> None:
    facts = facts_from_json({"tokens": tokens, "precision": {"compute": "float16", "from_the_future": 1}})
    assert facts == Facts(precision=Precision(compute="float16"))


def test_over_keeps_what_is_known() -> None:
    one = Facts(precision=Precision(compute="float16"))
    other = Facts(precision=Precision(compute="float32"), versions={"torch": "2.13.0"})
    both = one.over(other)
    assert both.precision == one.precision
    assert both.versions == other.versions


def test_arrays_come_back_as_arrays() -> None:
    use = TokenUse(ids=np.array([3]), counts=np.array([2]), first=np.array([1]), sequences=2, names={3: "<s>"})
    scan = TensorScan(name="w", dtype="float16", shape=(2, 3), nonfinite=1, peak=float("inf"), rms=float("nan"))
    back = facts_from_json(facts_as_json(Facts(tokens=use, weights=Weights(tensors=[scan]))))
    assert back.tokens is not None
    assert back.tokens.ids.dtype == np.int64
    assert back.tokens.names == {3: "<s>"}
    assert back.weights is not None
    assert back.weights.tensors[0].shape == [2, 3]
