"""SARIF 2.1.0: valid against the schema of the standard, and the right places."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.reports.sarif_schema import check_structure, valid_log
from tests.sources.worlds import settings

from finitune.cli.commands.check import command
from finitune.finding import CheckResult, Finding, NotChecked, Remedy, Where
from finitune.preflight import foresee
from finitune.sources.cases.case import read


def log_of(*findings, not_checked=()):
    return valid_log(CheckResult(findings=findings, not_checked=not_checked))["runs"][0]


def finding(**more):
    return Finding(**{"cause": "lr-too-high", "severity": "warning", "message": "seen", **more})


@pytest.mark.parametrize(("severity", "level"), [("error", "error"), ("warning", "warning"), ("info", "note")])
def test_levels(severity, level):
    (result,) = log_of(finding(severity=severity))["results"]
    assert result["level"] == level


def test_the_rules_are_the_chapters_of_the_book():
    run = log_of(finding(), finding(cause="all-labels-ignored"), finding(), finding(cause="of-a-third-party"))
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["all-labels-ignored", "lr-too-high", "of-a-third-party"]
    assert "learning rate" in rules[1]["shortDescription"]["text"]
    assert rules[1]["help"]["text"]


@pytest.mark.parametrize(
    ("name", "text", "key", "line"),
    [
        ("a.json", '{\n "fp16": true,\n "learning_rate": 1\n}', "learning_rate", 3),
        ("a.yaml", "# lr\ntrainer:\n  learning_rate: 1\n", "trainer.learning_rate", 3),
        ("run.sh", "python t.py \\\n --learning_rate 1", "learning_rate", 2),
        ("run.sh", "python t.py \\\n --learning-rate=1", "learning_rate", 2),
        ("a.yaml", "learning_rate_x: 1\n", "learning_rate", None),
    ],
)
def test_the_line_of_a_key(tmp_path, monkeypatch, name, text, key, line):
    (tmp_path / name).write_text(text)
    for file in (str(tmp_path / name), f"{tmp_path / name}: fp16"):
        (result,) = log_of(finding(where=Where(file=file, key=key)))["results"]
        physical = result["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == (tmp_path / name).as_uri()
        assert physical.get("region", {}).get("startLine") == line
    monkeypatch.chdir(tmp_path)
    (result,) = log_of(finding(where=Where(file=str(tmp_path / name))))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == name


def test_places_without_a_file_and_files_that_are_not_there():
    results = log_of(
        finding(),
        finding(where=Where(module="model.layers.0", tensor="w")),
        finding(where=Where(file="the live model", key="x")),
        finding(where=Where(file="/nowhere/a b.json", key="x")),
    )["results"]
    assert "locations" not in results[0]
    assert [place["fullyQualifiedName"] for place in results[1]["locations"][0]["logicalLocations"]] == [
        "model.layers.0", "w",
    ]  # fmt: skip
    assert results[3]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///nowhere/a%20b.json"


def test_numbers_that_json_does_not_have_and_what_was_not_checked():
    remedy = Remedy(name="lower-learning-rate", safety="safe", command="finitune repair x")
    run = log_of(
        finding(evidence={"lr": float("inf")}, remedy=remedy), not_checked=[NotChecked(input="data", why="none given")]
    )
    (result,) = run["results"]
    assert result["properties"]["evidence"] == {"lr": "inf"}
    assert result["message"]["text"] == "seen\nDo: finitune repair x"
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "not checked: data: none given"


def test_from_the_command_line(tmp_path):
    file = settings(tmp_path / "a.json", fp16=True, learning_rate=6e-3)
    done = CliRunner().invoke(command, [str(file), "--format", "sarif"], standalone_mode=False)
    log = json.loads(done.output)
    check_structure(log)
    assert "lr-too-high" in {result["ruleId"] for result in log["runs"][0]["results"]}


def test_each_config_by_itself_and_others_passed_over(tmp_path):
    one = settings(tmp_path / "a.json", bf16=True, learning_rate=1e-5)
    two = settings(tmp_path / "b.json", fp16=True, learning_rate=2e-5)
    other = settings(tmp_path / "package.json", name="x")
    arguments = ["--each", str(one), str(two), str(other), "--format", "json"]
    result = json.loads(CliRunner().invoke(command, arguments, standalone_mode=False).output)
    assert result["not_checked"] == []
    assert "config-disagreement" not in {found["cause"] for found in result["findings"]}


def test_every_public_incident_gives_a_valid_log():
    lines = (Path(__file__).parents[2] / "benchmarks/incidents-dev.jsonl").read_text().splitlines()
    ids = {name for line in lines for name in rules_of(valid_log(foresee(read(json.loads(line)))))}
    assert len(ids) > 10


def rules_of(log):
    return [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
