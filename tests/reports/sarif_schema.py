"""SARIF of a result, valid against the schema of the standard (tests/data/sarif)."""

import json
from functools import cache
from pathlib import Path

import pytest

from finitune.reports import sarif

SCHEMA = Path(__file__).parents[1] / "data/sarif/sarif-schema-2.1.0.json"


@cache
def validator():
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft4Validator(json.loads(SCHEMA.read_text()), format_checker=jsonschema.FormatChecker())


def check_structure(log):
    """What the schema asks for, and what it cannot ask for: the rule of every result is listed, once."""
    validator().validate(log)
    assert log["$schema"] == validator().schema["id"]
    (run,) = log["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(ids) == len(set(ids))
    assert all(ids[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    places = [place["physicalLocation"] for r in run["results"] for place in r.get("locations", ())
              if "physicalLocation" in place]  # fmt: skip
    assert not any(set(place["artifactLocation"]["uri"]) & set(' \\"<>') for place in places)


def valid_log(result):
    log = json.loads(sarif.render(result))
    check_structure(log)
    return log
