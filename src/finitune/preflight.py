"""Before a run: gather the facts, ask every cause what it foresees, and say what was not checked."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from finitune.chapter import Chapter, causes, proposed, required
from finitune.facts import Facts
from finitune.finding import SEVERITIES, CheckResult, Finding, NotChecked, UnreadableInput, as_json, renamed
from finitune.sources.collated import data_in
from finitune.sources.configs.projects import project_of
from finitune.sources.configs.runs import Config, is_config, known_of
from finitune.sources.data import lengths
from finitune.sources.editing.patching import standings_each, taken
from finitune.sources.editing.spelling import Standing
from finitune.sources.gather import gather_each
from finitune.sources.objects import model_in, settings_of
from finitune.sources.result import Reading, Track, untracked

INPUT_OF = {
    **dict.fromkeys(
        ("precision", "optimizer", "parallel", "quantization", "adapter", "attention", "batching", "training",
         "disagreements", "unknown_keys"), "config",
    ),
    **dict.fromkeys(("model", "weights", "rows", "head_rows", "activations", "vocabulary"), "model"),
    "tokens": "data", "labels": "data", "hardware": "gpu",
}  # fmt: skip
"""The input that each group of facts comes from, where the two have different names."""

OPTIONAL = {"parallel", "quantization", "adapter", "attention", "batching", "training", "head_rows"}
"""Groups that a run may do without: where the files were read and have none, chapters about them say nothing."""

NO_VERSIONS = "no versions known, give --requirements"

_Run = tuple[Sequence[int], CheckResult]
"""The lines of a launch, where there are several, and what was found of it."""


def check(
    *configs: Any,
    model: Any = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    args: Any = None,
    tokenizer: Any = None,
    dataset: Any = None,
    data_collator: Any = None,
    track: Track = untracked,
) -> CheckResult:
    """Will this run survive? Needs no GPU and no torch; the weights are read once, in less than 1 GiB of memory.

    `configs` are files, mappings, or arguments such as TrainingArguments, recognised by content; `args` is one more.
    `model` is a directory, or a model in memory beside its `tokenizer`; `data` a file, `dataset` rows in memory.
    `data_collator` is the program's own, and called to see which labels it makes. `track` shows how far the reading is.
    Raises UnreadableInput for an input that cannot be used.

    For instance: `finitune.check(model=model, tokenizer=tokenizer, dataset=dataset, args=training_args, gpu="V100")`.
    """
    if data_collator is not None and dataset is None:
        raise UnreadableInput("data_collator: expected beside a dataset in memory")
    configs = tuple(map(settings_of, (*configs, *([args] if args is not None else []))))
    if not (model is None or isinstance(model, str | Path)) or tokenizer is not None or dataset is not None:
        live = {
            "model": model, "data": data, "tokenizer": tokenizer, "dataset": dataset, "data_collator": data_collator
        }  # fmt: skip
        return _check_live(configs, live, gpu=gpu, requirements=requirements, track=track)
    folders = [config for config in configs if isinstance(config, str | Path) and Path(config).is_dir()]
    if folders:
        inputs = {"model": model, "data": data, "gpu": gpu, "requirements": requirements, "track": track}
        return _check_project(configs, inputs)
    readings = gather_each(*configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track)
    runs = [
        (lines, _placed(foresee(reading.facts, reading.not_checked, requirements=requirements), reading))
        for lines, reading in readings
    ]
    if not any(isinstance(config, Mapping) for config in configs):
        inputs = {"--model": model, "--data": data, "--gpu": gpu, "--requirements": requirements}
        known, _ = known_of(configs)
        words = [word for config in known for word in ("--config", str(config))]
        words += [word for option, given in inputs.items() if given is not None for word in (option, str(given))]
        runs = _with_commands(runs, words, standings_each(known, model))
    return runs[0][1] if len(runs) == 1 else _together(runs)


def _check_live(configs: Sequence[Config], live: Mapping[str, Any], **given: Any) -> CheckResult:
    """Objects in memory are read from what they save of themselves, and called MODEL and DATA."""
    model, data, left = live["model"], live["data"], list[NotChecked]()
    if live["tokenizer"] is not None and (model is None or isinstance(model, str | Path)):
        raise UnreadableInput("tokenizer: expected beside a model in memory (a directory has its own)")
    with TemporaryDirectory(prefix="finitune-") as name:
        if model is not None and not isinstance(model, str | Path):
            model, found = model_in(Path(name), model, live["tokenizer"])
            left += found
        if live["dataset"] is not None:
            data, found = data_in(Path(name), live["dataset"], live["tokenizer"], live["data_collator"])
            left += found
        try:
            result = check(*configs, model=model, data=data, **given)
        except UnreadableInput as error:
            raise UnreadableInput(str(error).replace(f"{name}/", "")) from None
    return renamed(dataclasses.replace(result, not_checked=[*left, *result.not_checked]), f"{name}/", "")


def _check_project(configs: Sequence[Config], inputs: Mapping[str, Any]) -> CheckResult:
    """Each training of a folder by itself, all in one result. Raises UnreadableInput."""
    if len(configs) > 1:
        raise UnreadableInput(f"{configs[0]}: a folder is checked alone (expected one folder, or files)")
    project = project_of(Path(str(configs[0])))
    results: list[_Run] = []
    left_out = list(project.not_checked)
    for start in project.starts:
        try:
            results.append(((), check(start, **inputs)))
        except UnreadableInput as error:
            left_out.append(NotChecked(input="config", why=str(error)))
    if not results:
        raise UnreadableInput(left_out[0].why)
    together = _together(results) if len(results) > 1 else results[0][1]
    trainings = "1 training" if len(results) == 1 else f"{len(results)} trainings"
    head = f"{configs[0]}: {trainings} among {project.files} programs, scripts and configurations"
    return dataclasses.replace(
        together,
        understood=[head, *(f"  {line}" for line in together.understood)],
        not_checked=_one_per_input([*left_out, *together.not_checked]),
    )


def _placed(result: CheckResult, reading: Reading) -> CheckResult:
    """The findings with their lines, where the file is a program, and what each file was taken for."""

    def with_line(finding: Finding) -> Finding:
        where = finding.where
        if where.file is None or where.file not in reading.places:
            return finding
        patch = list(finding.remedy.patch) if finding.remedy and finding.remedy.patch else []
        keys = [one for key in (where.key, *patch) if key for one in (key, key.rpartition(".")[2])]
        files = [where.file, *(file for file in reading.places if file != where.file)]
        spots = [(file, reading.places[file][key]) for key in keys for file in files if key in reading.places[file]]
        whole = reading.places[where.file].get("")  # where a program or a launch begins; of other files nobody looks
        if not spots and whole is None:
            return finding
        file, (cell, line) = spots[0] if spots else (where.file, whole or (None, 1))
        return dataclasses.replace(finding, where=dataclasses.replace(where, file=file, cell=cell, line=line))

    found: list[Finding] = []
    for finding in map(with_line, result.findings):  # a program repeats what the file says that it is started with
        alike = [one for one in found if (one.cause, one.message) == (finding.cause, finding.message)]
        found += [] if any(one.where == finding.where for one in alike) else [finding]
    held = list(lengths.of(reading.facts.labels)) if reading.facts.labels else []
    return dataclasses.replace(result, findings=found, understood=reading.understood, lengths=held)


def _with_commands(runs: Sequence[_Run], words: Sequence[str], found: Sequence[Sequence[Standing]]) -> list[_Run]:
    """A patch that the files given can take, for every run that needs it, is one command away."""
    needed: dict[str, dict[int, Sequence[Standing]]] = {}
    for i, (_, result) in enumerate(runs):
        for finding in result.findings:
            if finding.remedy and finding.remedy.patch and not finding.remedy.command:
                needed.setdefault(_patch_of(finding), {})[i] = found[i]

    def with_command(finding: Finding) -> Finding:
        remedy, places = finding.remedy, needed.get(_patch_of(finding))
        if remedy is None or not remedy.patch or not places:
            return finding
        settings = taken(remedy.patch, list(places.values()), finding.where.file)
        if settings is None:
            return finding
        command = shlex.join(["finitune", "repair", remedy.name, *words, "--patch"])
        own = {one.key: one.value for one in settings} if len({one.file for one in settings}) == 1 else {}
        spelled = None if own.items() <= remedy.patch.items() else own
        remedy = dataclasses.replace(remedy, command=command, spelled=spelled)
        return dataclasses.replace(finding, remedy=remedy)

    return [
        (lines, dataclasses.replace(result, findings=[with_command(finding) for finding in result.findings]))
        for lines, result in runs
    ]


def _patch_of(finding: Finding) -> str:
    """The remedy, its patch and where it would go first."""
    remedy = finding.remedy
    return json.dumps([remedy.name, as_json(remedy.patch), finding.where.file]) if remedy else ""


NAMED = 8
"""So many files that were passed over are named."""


def check_each(*configs: str | Path, **given: Any) -> CheckResult:
    """Every configuration checked by itself, as if the others were not there; files that are none are passed over.

    `given` as for `check`. What nobody gave is left out, because nobody meant to give a whole run; `not_checked` are
    the files that cannot be read: also damaged ones that have the keys of a configuration.
    """
    results: list[CheckResult] = []
    unread: list[NotChecked] = []
    others: list[str] = []
    for config in configs:
        if Path(config).is_dir():
            why = f"{config}: a folder (expected a file: without --each a folder is checked as one project)"
            unread.append(NotChecked(input="config", why=why, given=True))
            continue
        try:
            if Path(config).exists() and not is_config(config):
                others.append(str(config))
                continue
            results.append(check(config, **given))
        except UnreadableInput as error:
            unread.append(NotChecked(input="config", why=str(error), given=True))
    findings = [finding for result in results for finding in result.findings]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    passed = set[str]().union(*(result.passed for result in results)) - {finding.cause for finding in findings}
    read = f"{len(results)} of {len(configs)} files are configurations that are known here, each by itself"
    more = [f"and {len(others) - NAMED} more"] if len(others) > NAMED else []
    over = [f"without settings that are known here: {', '.join([*others[:NAMED], *more])}"] if others else []
    return CheckResult(findings=findings, not_checked=unread, passed=sorted(passed), understood=[read, *over])


def foresee(
    facts: Facts, not_checked: Sequence[NotChecked] = (), *, requirements: str | Path | None = None
) -> CheckResult:
    """What every cause of the book says about these facts, the gravest first.

    A cause passes only where it was asked with all that it can read. Where an input is missing, it stands in
    `not_checked` under that input; where the files were read and have nothing of its kind, in `nothing_to_say`.
    """
    inputs = facts.by_name()
    findings: list[Finding] = []
    passed: list[str] = []
    silent: list[str] = []
    left_out = list(not_checked)
    not_asked: dict[str, list[str]] = {}
    absent = {entry.input for entry in not_checked}
    unread = facts.model is not None and facts.model.path is None  # known by its name alone, which clears nothing
    for name, chapter in causes().items():
        function = chapter.function("foresee")
        if function is None:
            continue
        answer = chapter.ask("foresee", inputs)
        findings += [_with_remedy(finding, chapter, inputs) for finding in answer.results]
        missing = [*answer.missing, *answer.needs, *(["model"] if unread and "model" in required(function) else [])]
        if answer.broken:
            why = f"this check is broken ({answer.broken}); please report it"
            left_out.append(NotChecked(input=name, why=why))
        unknown = [one for one in missing if not (one in OPTIONAL and INPUT_OF[one] not in absent)]
        for one in unknown:
            source = one.partition(".")[0]
            source = source if source in absent else INPUT_OF.get(source, source)
            not_asked.setdefault(source, []).append(name)
            if source not in absent:  # an input that is absent as a whole has its reason already
                left_out.append(NotChecked(input=source, why=_lack(one, name, requirements)))
        if not (answer.results or answer.broken or unknown):
            (silent if missing else passed).append(name)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return CheckResult(
        findings=findings, not_checked=_one_per_input(left_out), passed=passed, nothing_to_say=silent,
        not_asked={name: sorted(set(waiting)) for name, waiting in not_asked.items()},
    )  # fmt: skip


def _together(runs: Sequence[_Run]) -> CheckResult:
    """The results of several runs that one script launches; a finding says of which it is true."""
    found: dict[str, tuple[Finding, list[int]]] = {}
    for lines, result in runs:
        for finding in result.findings:
            anywhere = dataclasses.replace(finding, where=dataclasses.replace(finding.where, line=None))
            found.setdefault(json.dumps(as_json(anywhere if lines else finding)), (finding, []))[1].extend(lines)
    findings = [_launched(finding, sorted(set(lines))) for finding, lines in found.values()]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    left_out = [entry for _, result in runs for entry in result.not_checked]
    answered = set[str].intersection(*({*result.passed, *result.nothing_to_say} for _, result in runs))
    passed = answered & set[str]().union(*(result.passed for _, result in runs))
    return CheckResult(
        findings=findings, not_checked=_one_per_input(left_out), passed=sorted(passed),
        nothing_to_say=sorted(answered - passed),
        understood=list(dict.fromkeys(line for _, result in runs for line in result.understood)),
        lengths=next((result.lengths for _, result in runs if result.lengths), ()),
        not_asked={
            name: sorted({cause for _, result in runs for cause in result.not_asked.get(name, ())})
            for name in dict.fromkeys(name for _, result in runs for name in result.not_asked)
        },
    )  # fmt: skip


def _launched(finding: Finding, lines: Sequence[int]) -> Finding:
    if not lines:
        return finding
    where = f"launch in line {lines[0]}" if len(lines) == 1 else f"launches in lines {', '.join(map(str, lines))}"
    evidence = {**finding.evidence, "launch_lines": list(lines)}
    return dataclasses.replace(finding, message=f"{finding.message} ({where})", evidence=evidence)


def _with_remedy(finding: Finding, chapter: Chapter, inputs: Mapping[str, Any]) -> Finding:
    """The chapter's best remedy that has something to say about this finding."""
    if finding.remedy is not None:
        return finding
    fitting = proposed(chapter, {**inputs, "finding": finding, "where": finding.where})
    return dataclasses.replace(finding, remedy=fitting[0] if fitting else None)


def _lack(wanted: str, cause: str, requirements: str | Path | None) -> str:
    """What the cause could not read in what was given."""
    group, _, entry = wanted.partition(".")
    if group == "versions" and entry and requirements:
        return f"{cause}: no exact version of {entry} in {requirements}"
    if group == "versions":
        return f"{cause}: version of {entry} unknown, give --requirements" if entry else f"{cause}: {NO_VERSIONS}"
    why = f"what was given says nothing about {(entry or group).replace('_', ' ')}"
    return f"{cause}: {why}" if entry else why


def _one_per_input(entries: Sequence[NotChecked]) -> list[NotChecked]:
    """The reasons of each input in one entry; what one cause alone lacks stays an entry of its own."""
    found: dict[tuple[str, str], list[NotChecked]] = {}
    for entry in entries:
        alone = entry.why if entry.why.partition(": ")[0] in causes() else ""
        found.setdefault((entry.input, alone), []).append(entry)
    return [
        NotChecked(
            input=name, why="; ".join(dict.fromkeys(one.why for one in alike)), given=any(one.given for one in alike)
        )
        for (name, _), alike in found.items()
    ]  # fmt: skip
