"""Findings become strict JSON, whatever numbers they hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.finding import CheckResult, Diagnosis, Finding, Incident, NotChecked, Remedy, Where, as_json, number

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.floats(width=16).map(np.float16)
    | st.floats(width=32).map(np.float32)
    | st.floats().map(np.longdouble)
    | st.floats(width=32).map(ml_dtypes.bfloat16)
    | st.integers(0, 255).map(np.uint8)
    | st.lists(st.floats()).map(np.array)
    | st.just(Path("runs/1"))
    | st.just(Where(rows=[1, 2], tokens=(np.int64(6), 7)))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers() | st.floats(), inner),
    max_leaves=12,
)


@given(values)
def test_every_value_becomes_strict_json(value: object) -> None:
    text = json.dumps(as_json(value), allow_nan=False)
    assert as_json(json.loads(text)) == json.loads(text)


@given(st.floats())
def test_a_number_survives_the_round_trip(value: float) -> None:
    back = number(json.loads(json.dumps(as_json(value), allow_nan=False)))
    assert back is not None
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize("value", [None, True, "1", "NaN", "", [], [1.0], {}, {"a": 1}, b"1"])
def test_what_is_not_a_number_is_none(value: object) -> None:
    assert number(value) is None


def test_an_integer_beyond_every_float_is_infinite() -> None:
    assert number(10**400) == math.inf
    assert number(-(10**400)) == -math.inf


def test_check_result_has_the_shape_of_the_contract() -> None:
    remedy = Remedy(name="reinit-token-rows", safety="safe", command="finitune repair reinit-token-rows m -o n")
    finding = Finding(
        cause="untrained-token-embeddings",
        severity="error",
        message="2 rows are tiny",
        where=Where(file="model.safetensors", tokens=[6, 7]),
        evidence={"row_rms": np.float32(0.0), "ratio": -math.inf},
        remedy=remedy,
    )
    out = as_json(CheckResult(findings=[finding], not_checked=[NotChecked(input="data", why="no --data given")]))
    assert list(out)[:2] == ["schema", "verdict"]
    assert (out["schema"], out["verdict"]) == ("finitune.check/1", "broken")
    assert set(out["findings"][0]) == {"cause", "severity", "message", "where", "evidence", "remedy"}
    assert set(out["findings"][0]["where"]) == {
        "file", "line", "cell", "key", "module", "tensor", "tokens", "rows", "step", "rank",
    }  # fmt: skip
    assert set(out["findings"][0]["remedy"]) == {"name", "safety", "command", "patch"}
    assert out["findings"][0]["evidence"] == {"row_rms": 0.0, "ratio": "-inf"}
    assert out["not_checked"] == [{"input": "data", "why": "no --data given"}]


@pytest.mark.parametrize(
    ("severities", "verdict"), [([], "ok"), (["info"], "ok"), (["info", "warning"], "at-risk"), (["error"], "broken")]
)
def test_the_worst_severity_decides_the_verdict(severities: list, verdict: str) -> None:
    findings = [Finding(cause="c", severity=severity, message="m") for severity in severities]
    assert CheckResult(findings=findings, not_checked=[], passed=["p"]).verdict == verdict


def test_a_diagnosis_without_incidents_is_healthy() -> None:
    incident = Incident(
        step=31, rank=0, symptom="nonfinite-loss", reproducible=None, origin=None, causes=[], action="skipped-step"
    )
    assert as_json(Diagnosis(incidents=[]))["verdict"] == "healthy"
    out = as_json(Diagnosis(incidents=[incident]))
    assert (out["schema"], out["verdict"]) == ("finitune.diagnosis/1", "incident")
    contract = {"step", "rank", "symptom", "reproducible", "origin", "causes", "action"}
    assert contract <= set(out["incidents"][0])
