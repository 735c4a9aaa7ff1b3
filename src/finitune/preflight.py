"""Before a run: gather the facts, ask every cause what it foresees, and say what was not checked."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.chapter import Chapter, ask, causes, remedies, required
from finitune.facts import Facts
from finitune.finding import SEVERITIES, CheckResult, Cure, Finding, NotChecked, as_json
from finitune.sources.editing.patching import standings_each, takes
from finitune.sources.editing.spelling import Standing
from finitune.sources.gather import Config, gather_each, is_config
from finitune.sources.result import Track, untracked

INPUT_OF = {
    "precision": "config", "optimizer": "config", "model": "model", "weights": "model", "rows": "model",
    "activations": "model",
    "head_rows": "model", "tokens": "data", "labels": "data", "hardware": "gpu", "versions": "requirements",
    "vocabulary": "model", "parallel": "config", "quantization": "config", "adapter": "config", "attention": "config",
    "batching": "config", "training": "config", "disagreements": "config", "unknown_keys": "config",
}  # fmt: skip
"""The input that each group of facts comes from."""


_Run = tuple[Sequence[int], CheckResult]
"""The lines of a launch, where there are several, and what was found of it."""


def check(
    *configs: Config,
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    track: Track = untracked,
) -> CheckResult:
    """Will this run survive? Needs no GPU and no torch; the weights are read once, in less than 1 GiB of memory.

    `configs` are files or mappings, recognised by content; `track` shows how far the reading is.
    Raises UnreadableInput for an input that cannot be used.
    """
    readings = gather_each(*configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track)
    runs = [(lines, foresee(reading.facts, reading.not_checked)) for lines, reading in readings]
    if not any(isinstance(config, Mapping) for config in configs):
        inputs = {"--model": model, "--data": data, "--gpu": gpu, "--requirements": requirements}
        words = [word for config in configs for word in ("--config", str(config))]
        words += [word for option, given in inputs.items() if given is not None for word in (option, str(given))]
        runs = _with_commands(runs, words, standings_each(configs, model))
    return runs[0][1] if len(runs) == 1 else _together(runs)


def _with_commands(runs: Sequence[_Run], words: Sequence[str], found: Sequence[Sequence[Standing]]) -> list[_Run]:
    """A patch that the files given can take, for every run that needs it, is one command away."""
    needed: dict[str, dict[int, Sequence[Standing]]] = {}
    for i, (_, result) in enumerate(runs):
        for finding in result.findings:
            if finding.remedy and finding.remedy.patch and not finding.remedy.command:
                needed.setdefault(_patch_of(finding), {})[i] = found[i]

    def with_command(finding: Finding) -> Finding:
        cure, places = finding.remedy, needed.get(_patch_of(finding))
        if cure is None or not cure.patch or not places:
            return finding
        if not takes(cure.patch, list(places.values()), finding.where.file):
            return finding
        command = shlex.join(["finitune", "repair", cure.name, *words, "--patch"])
        return dataclasses.replace(finding, remedy=dataclasses.replace(cure, command=command))

    return [
        (lines, dataclasses.replace(result, findings=[with_command(finding) for finding in result.findings]))
        for lines, result in runs
    ]


def _patch_of(finding: Finding) -> str:
    """The remedy, its patch and where it would go first."""
    cure = finding.remedy
    return json.dumps([cure.name, as_json(cure.patch), finding.where.file]) if cure else ""


def check_each(*configs: str | Path, **given: Any) -> CheckResult:
    """Every configuration checked by itself, as if the others were not there; files that are none are passed over.

    `given` as for `check`. What was not checked is left out, because nobody meant to give a whole run.
    """
    results = [check(config, **given) for config in configs if is_config(config)]
    findings = [finding for result in results for finding in result.findings]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    passed = set[str]().union(*(result.passed for result in results)) - {finding.cause for finding in findings}
    return CheckResult(findings=findings, not_checked=[], passed=sorted(passed))


def foresee(facts: Facts, not_checked: Sequence[NotChecked] = ()) -> CheckResult:
    """What every cause of the book says about these facts, the gravest first."""
    inputs = facts.by_name()
    findings: list[Finding] = []
    passed: list[str] = []
    left_out = list(not_checked)
    unread = facts.model is not None and facts.model.path is None  # known by its name alone, which clears nothing
    for name, chapter in causes().items():
        function = chapter.function("foresee")
        if function is None:
            continue
        answer = ask(function, inputs)
        if answer.broken:
            left_out.append(NotChecked(input=name, why=f"this check is broken ({answer.broken}); please report it"))
        left_out += [_absent(group) for group in answer.missing if not _explained(group, left_out)]
        findings += [_with_remedy(finding, chapter, inputs) for finding in answer.results]
        by_name = unread and "model" in required(function)
        if not (answer.broken or answer.missing or answer.results or by_name):
            passed.append(name)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckResult(findings=findings, not_checked=_one_per_input(left_out), passed=passed)


def _together(runs: Sequence[_Run]) -> CheckResult:
    """The results of several runs that one script launches; a finding says of which it is true."""
    found: dict[str, tuple[Finding, list[int]]] = {}
    for lines, result in runs:
        for finding in result.findings:
            found.setdefault(json.dumps(as_json(finding)), (finding, []))[1].extend(lines)
    findings = [_launched(finding, sorted(set(lines))) for finding, lines in found.values()]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    failed = {finding.cause for finding in findings}
    passed = [name for name in runs[0][1].passed if name not in failed and all(name in run.passed for _, run in runs)]
    left_out = [entry for _, result in runs for entry in result.not_checked]
    return CheckResult(findings=findings, not_checked=_one_per_input(left_out), passed=passed)


def _launched(finding: Finding, lines: Sequence[int]) -> Finding:
    where = f"launch in line {lines[0]}" if len(lines) == 1 else f"launches in lines {', '.join(map(str, lines))}"
    evidence = {**finding.evidence, "launch_lines": list(lines)}
    return dataclasses.replace(finding, message=f"{finding.message} ({where})", evidence=evidence)


def _with_remedy(finding: Finding, chapter: Chapter, inputs: Mapping[str, Any]) -> Finding:
    """The chapter's best remedy that has something to say about this finding."""
    if finding.remedy is not None:
        return finding
    asked = {**inputs, "finding": finding, "where": finding.where}
    for name in chapter.declared("remedies"):
        remedy = remedies().get(name)
        propose = remedy.function("propose") if remedy else None
        cures = [cure for cure in ask(propose, asked).results if isinstance(cure, Cure)] if propose else []
        if cures:
            return dataclasses.replace(finding, remedy=cures[0])
    return finding


def _absent(group: str) -> NotChecked:
    source = INPUT_OF.get(group, group)
    return NotChecked(input=source, why=f"what was given says nothing about {group}")


def _explained(group: str, left_out: Sequence[NotChecked]) -> bool:
    return any(entry.input in (INPUT_OF.get(group, group), group) for entry in left_out)


def _one_per_input(entries: Sequence[NotChecked]) -> list[NotChecked]:
    whys: dict[str, list[str]] = {}
    for entry in entries:
        seen = whys.setdefault(entry.input, [])
        if entry.why not in seen:
            seen.append(entry.why)
    return [NotChecked(input=name, why="; ".join(reasons)) for name, reasons in whys.items()]
