"""What is true of a program, and what was said of it: the comparison, aspect by aspect.

The truth of a folder of programs stands in its `truth.yaml`, which explains its keys. What was said is what a user can
see: exit code, stdout and stderr of `finitune run`, and the JSON of `finitune diagnose`.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ASPECTS = ("watched", "step", "symptom", "place", "cause", "exit", "identical", "weights", "silent")
KINDS = ("healthy", "sick", "crash", "suspect", "untrained")
SUMMARY = re.compile(r"finitune: (\d[\d,_]*) steps?\b")  # the one line that ends a healthy run
NUMBER = re.compile(r"[-+]?(?:nan|inf|\d+\.?\d*(?:e[-+]?\d+)?)", re.IGNORECASE)
PLACE = re.compile(r"([^/\\\s:\"]+\.py):(\d+)")
STOPPED = 3  # how `finitune run` ends where it stopped a run that it guarded
PROGRESS = re.compile(r"it/s|s/it|\d%\|")
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "base_model.model.")

Truth = Mapping[str, Any]
Report = Mapping[str, Any]
"""The JSON of a diagnosis; None where there is no recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended. `code` is 128 + n where signal n ended it."""

    code: int
    out: str
    err: str

    @property
    def spoken(self) -> list[str]:
        """The lines of stderr that finitune began."""
        return [line for line in re.split(r"[\r\n]+", self.err) if "finitune:" in line]


def truths(folder: Path) -> dict[str, Truth]:
    """The truth about each program of `folder`, by name."""
    read = yaml.safe_load((folder / "truth.yaml").read_text(encoding="utf-8"))
    assert isinstance(read, dict), f"{folder / 'truth.yaml'}: expected a mapping of program to truth"
    return read


def judged(program: Path, truth: Truth, plain: Ended, watched: Ended, report: Report | None) -> dict[str, str]:
    """Aspect -> what differs from the truth, "" where nothing does; only the aspects that the kind of program has."""
    kind = truth["kind"]
    differs = {"exit": _exit(truth, watched), "identical": _identical(truth, plain, watched)}
    if kind == "healthy":
        return differs | {"watched": _healthy(truth, watched, report), "silent": _silent(plain, watched)}
    if kind == "untrained":
        accused = report is not None and report.get("verdict") != "healthy"
        silent = _silent(plain, watched, any_line=True)
        return differs | {"watched": f"verdict {_verdict(report)}" if accused else "", "silent": silent}
    if kind == "suspect":
        return differs | _suspect(truth, watched, report)
    incidents = _incidents(report, suspicions=False)
    wanted = _list(truth.get("symptom", kind))
    first = next((i for i in incidents if i.get("symptom") in wanted), incidents[0] if incidents else None)
    if first is None:
        unseen = dict.fromkeys(("step", "symptom", "place", "cause"), "no incident")
        return differs | unseen | {"watched": f"no incident; verdict {_verdict(report)}"}
    differs |= {
        "watched": "",
        "step": _step(truth, first),
        "symptom": _among("symptom", first.get("symptom"), wanted),
        "cause": _cause(truth, first),
    }
    if kind == "crash":
        return differs | {"place": _crash(program, truth, first)}
    differs |= {"place": _place(program, truth, first), "silent": _one_each(truth, incidents)}
    if truth.get("finite") and watched.code != STOPPED:
        last = NUMBER.findall(watched.out)[-1:]
        differs["weights"] = "" if last and math.isfinite(float(last[0])) else f"the last number printed is {last}"
    return differs


def lines_of(program: Path, fragment: str) -> range:
    """The lines of the smallest statement that holds `fragment`, which must stand in one line of the program."""
    text = program.read_text(encoding="utf-8")
    at = [n for n, line in enumerate(text.splitlines(), 1) if fragment in line]
    assert len(at) == 1, f"{program.name}: {fragment!r} stands in {len(at)} lines"
    around = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= at[0] <= (node.end_lineno or node.lineno)
    ]
    return min(around, key=len)


def _list(accepted: Any) -> list[Any]:
    return accepted if isinstance(accepted, list) else [accepted]


def _among(what: str, seen: object, accepted: Any) -> str:
    return "" if seen in _list(accepted) else f"{what} is {seen}, expected {_list(accepted)}"


def _verdict(report: Report | None) -> str:
    return "none, no recording was read" if report is None else str(report.get("verdict"))


def _incidents(report: Report | None, *, suspicions: bool) -> list[dict[str, Any]]:
    found = [] if report is None else report.get("incidents", [])
    kept = [i for i in found if suspicions or i.get("level", "incident") == "incident"]
    # Ranks that crash are listed as they died, which may be in different steps.
    return sorted(kept, key=lambda one: math.inf if one.get("symptom") == "crash" else one.get("step") or 0)


def _exit(truth: Truth, watched: Ended) -> str:
    return _among("exit code", watched.code, truth.get("ends", truth.get("exit", 0)))


def _identical(truth: Truth, plain: Ended, watched: Ended) -> str:
    """All of stdout, or of a sick program the lines that the fault cannot have changed."""
    if "same" not in truth and plain.out == watched.out:
        return ""
    alone, guarded = (run.out.splitlines(keepends=True)[: truth.get("same")] for run in (plain, watched))
    if alone == guarded:
        return ""
    pairs = zip(alone, guarded, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(alone), len(guarded)))
    return f"line {at + 1} is {guarded[at : at + 1]}, alone it is {alone[at : at + 1]}"


def _steps(watched: Ended, report: Report) -> int | None:
    """How many steps were recorded: a key of the diagnosis, else the line that ends the run."""
    if isinstance(report.get("steps"), int):
        return report["steps"]
    counts = [int(re.sub(r"\D", "", match[1])) for line in watched.spoken if (match := SUMMARY.search(line))]
    return counts[-1] if counts else None


def _healthy(truth: Truth, watched: Ended, report: Report | None) -> str:
    if report is None or report.get("verdict") != "healthy":
        found = _incidents(report, suspicions=True)
        said = [f"{i.get('level', 'incident')}: {i.get('symptom')} at step {i.get('step')}" for i in found]
        return f"verdict {_verdict(report)} {said or ''}".rstrip()
    steps = _steps(watched, report)
    if steps is None:
        return "healthy, but the number of steps is neither in the diagnosis nor in a last line"
    return _among("number of steps", steps, truth["steps"])


def _silent(plain: Ended, watched: Ended, *, any_line: bool = False) -> str:
    """At most one line of finitune, the summary unless `any_line`, and nothing else that is not printed alone."""
    if len(watched.spoken) > 1 or not (any_line or all(SUMMARY.search(line) for line in watched.spoken)):
        return f"said {watched.spoken[:3]}"
    new = _letters(watched) - _letters(plain)
    return f"new lines on stderr: {sorted(new)[:3]}" if new else ""


def _letters(run: Ended) -> set[str]:
    """The lines of stderr without digits and signs, which differ from run to run; no progress bars, no code that a
    warning quotes, and not the place of a warning, which may be a caller of the one it has alone."""
    lines = [line for line in re.split(r"[\r\n]+", run.err) if "finitune:" not in line and not PROGRESS.search(line)]
    texts = [re.sub(r"^.*?(?=\w*Warning: )", "", line) for line in lines if not line.startswith((" ", "\t"))]
    return {re.sub(r"[^A-Za-z ]+", "", text).strip() for text in texts} - {""}


def _one_each(truth: Truth, incidents: Sequence[Mapping[str, Any]]) -> str:
    """One incident for a bad step, whatever number of ranks and optimizers, and none for a healthy one."""
    steps = [incident.get("step") for incident in incidents]
    if healthy := [step for step in steps if not _is_bad(truth, step)]:
        return f"incidents at healthy steps {healthy}"
    return f"several incidents for one step: {steps}" if len(set(steps)) < len(steps) else ""


def _is_bad(truth: Truth, step: Any) -> bool:
    if step in _range(truth.get("also", [])):
        return True
    if truth.get("persistent"):
        return isinstance(step, int) and step >= min(_range(truth["step"]))
    return step in truth.get("bad", _range(truth["step"]))


def _range(step: Any) -> Sequence[int]:
    if isinstance(step, str):
        low, _, high = step.partition("..")
        return range(int(low), int(high) + 1)
    return _list(step)


def _step(truth: Truth, incident: Mapping[str, Any]) -> str:
    if "step" in truth and incident.get("step") not in _range(truth["step"]):
        return f"step {incident.get('step')}, expected {truth['step']}"
    return _among("rank", incident.get("rank"), truth["rank"]) if "rank" in truth else ""


def _cause(truth: Truth, incident: Mapping[str, Any]) -> str:
    """The first cause is an accepted one; where none fits, nothing above a guess is named."""
    accepted, causes = _list(truth["cause"]), incident.get("causes") or []
    claimed = [cause for cause in causes if cause.get("strength") != "guess"]
    if ("none" in accepted and not claimed) or (causes and causes[0].get("cause") in accepted):
        return ""
    named = [f"{cause.get('cause')}{' (proved)' if cause.get('proved') else ''}" for cause in causes[:2]]
    return f"cause is {named or None}, expected {accepted}"


def _place(program: Path, truth: Truth, incident: Mapping[str, Any]) -> str:
    origin = incident.get("origin")
    if not origin:
        return f"not located: {incident.get('not_located')}"
    operator = (origin.get("op") or "").removeprefix("aten.").partition(".")[0]
    if operator in ("", "input", "parameter"):  # where no operator made it, its name may repeat the phase
        operator = None
    found = [_among("phase", origin.get("phase"), truth["phase"]), _among("op", operator, truth["op"])]
    if "module" in truth and not any(_is_module(origin.get("module"), name) for name in _list(truth["module"])):
        found.append(f"module is {origin.get('module')!r}, expected {truth['module']!r}")
    if "line" in truth:
        found.append(_at(program, truth["line"], origin.get("line") or ""))
    return "; ".join(filter(None, found))


def _is_module(seen: str | None, name: str) -> bool:
    """The same module, whatever wraps it and whatever root it is named from."""
    plain = seen or ""
    for wrapper in WRAPPERS:
        plain = plain.replace(wrapper, "")
    return plain == name or (bool(name) and plain.endswith("." + name))


def _at(program: Path, fragments: Any, said: str) -> str:
    places = {(name, int(number)) for name, number in PLACE.findall(said)}
    spans = [lines_of(program, fragment) for fragment in _list(fragments)]
    if any((program.name, line) in places for span in spans for line in span):
        return ""
    return f"line is {said or None!r}, expected {program.name}:{spans[0][0]}"


def _crash(program: Path, truth: Truth, incident: Mapping[str, Any]) -> str:
    """Exception, message, own frame and facts, wherever in the incident they stand."""
    text = json.dumps(incident)
    found = [] if re.search(truth["exception"], text) else [f"no {truth['exception']}"]
    if "text" in truth and json.dumps(truth["text"])[1:-1] not in text:
        found.append(f"not its message {truth['text']!r}")
    if "frame" in truth and _at(program, truth["frame"], text):
        found.append(f"not its own frame {program.name}:{lines_of(program, truth['frame'])[0]}")
    found += [f"no fact {fact}" for fact in truth.get("facts", ()) if not re.search(fact, text)]
    return "; ".join(found)


def _suspect(truth: Truth, watched: Ended, report: Report | None) -> dict[str, str]:
    found = _incidents(report, suspicions=True)
    if found or (report is not None and report.get("verdict") in ("suspect", "incident")):
        first = found[0] if found else {}
        differs = {"watched": "", "step": _step(truth, first), "cause": _cause(truth, first)}
        if "symptom" in truth:
            differs["symptom"] = _among("symptom", first.get("symptom"), truth["symptom"])
        return differs
    if "steps" in truth and report is not None:
        return {"watched": _healthy(truth, watched, report)}
    if "steps" in truth:
        return {"watched": "" if watched.spoken else "not watched, and nothing is said of it"}
    return {"watched": f"verdict {_verdict(report)}"}
