"""Chapters: how the files of `causes/`, `symptoms/` and `remedies/` are found and asked, and what they may declare.

A chapter is one module, found by its file name; there is no other registration. A third party adds
chapters through the entry point group of the folder (`finitune.causes`, `finitune.symptoms`, `finitune.remedies`).
A function of a chapter declares what it reads by the names of its parameters.

A cause:

    foresee(facts by name...) -> Iterator[Finding | Needs]   before the run, from facts alone
    foresees = "learning rate"                          what its findings are about, where a run has failed
    weigh(inputs by name...)  -> Iterator[Evidence]     after it, for and against, from what a run measured
    tells = {"observation": (HINT, "a sentence"), ...}  the same, from what a log, settings or people say
    experiments = [Experiment(...), ...]                what decides it
    remedies = ["slug", ...]                            chapters of `remedies/`, best first
    public_incidents = 10                               how often it occurs in the public incidents: the prior
    frame = "deepspeed"                                 of a rare cause: what a log has to show before it comes first
    unseen = "whether ..."                              what no log shows of it, where every number stays finite

`weigh` may name any group of `Facts`, any signal (`loss`, `grad_norm`, `lr`, `loss_scale`, `skipped`: a Series up to
the bad step), and: `signals` (all of these), `symptoms` (set of slugs seen), `origin` (Origin), `repeats` (bool),
`incident` (the recorded event). Observations are rows of `observations.txt`. Evidence has three sizes
(`finitune.evidence`: HINT, STRONG, DECISIVE; negative against the cause), and says what it is about: of several pieces
about one thing, wherever they come from, the strongest for and the strongest against the cause count.
Experiments are weighed by the diagnosis itself.

A symptom, by one or both of:

    see(signals by name...) -> Sighting | None          judges the newest value of its first parameter
    review(signals by name...) -> Sighting | None       judges a whole log that has ended

`see` is asked at the steps at which its first signal has a value; the other signals may be older. Neither keeps state:
the window is the state, so the answer is the same live, on a recording and on a parsed log. `review` may name
`eval_loss` and `rewards` (True in reinforcement learning) besides. A symptom with neither is known from a message that
programs print (`sources/logs/messages.py`).

A remedy:

    safety = "safe" | "unsafe" | "advice"     safe: no meaning changes; unsafe: read what it changes; advice: by hand
    arm = "module-float32"                       the experiment that does the same: failed, it is not proposed
    propose(facts by name...) -> Remedy | None   the command or patch for these facts, None where it does not fit
    rewrites = "weights" | "rows" | "data"       what `finitune repair NAME` writes anew, by the chapter's `apply`

A cause that nobody can cure says so under "What to do", and its `remedies` are empty. The name of a chapter is its
file name and is written nowhere else: findings and remedies get it, and a remedy its safety, when a chapter is asked.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Literal, cast

from finitune.finding import Finding, Remedy, Safety
from finitune.series import Signals

SECTIONS = {
    "causes": ("What happens", "How to tell", "How to prove", "What to do", "What does not help", "References"),
    "symptoms": ("What it means", "How it is seen"),
    "remedies": ("What it changes", "When it is safe", "References"),
}
"""The sections that the docstring of every chapter has, in this order."""
_SECTION = re.compile(r"^## (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chapter: its slug (the file name with dashes) and its module."""

    name: str
    module: ModuleType

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return (self.module.__doc__ or "").strip().split("\n", 1)[0]

    @property
    def sections(self) -> dict[str, str]:
        """Heading -> text, from the `## ` headings of the docstring."""
        parts = _SECTION.split(inspect.cleandoc(self.module.__doc__ or ""))
        return {head: text.strip() for head, text in zip(parts[1::2], parts[2::2], strict=True)}

    def sentences(self, heading: str) -> list[str]:
        """The sentences of one section; none where the chapter has no such section."""
        text = " ".join(self.sections.get(heading, "").split())
        return [sentence for sentence in re.split(r"(?<=\.)\s+", text) if sentence]

    @property
    def safety(self) -> Safety:
        """Of a remedy, as it declares it."""
        return getattr(self.module, "safety", "advice")

    def function(self, name: str) -> Callable[..., Any] | None:
        return getattr(self.module, name, None)

    def declared(self, name: str) -> list[Any]:
        """A list that the chapter declares, empty where it does not."""
        return list(getattr(self.module, name, ()))

    def ask(self, name: str, inputs: Mapping[str, Any]) -> Answer:
        """What the function `name` says of `inputs`; empty where the chapter has no such function.

        A finding gets the chapter as its cause. A remedy of a remedy chapter gets its name and safety; that of a
        finding is the first of `remedies` unless it names another one.
        """
        function = self.function(name)
        if function is None:
            return Answer()
        answer = ask(function, inputs)
        return dataclasses.replace(answer, results=[self._signed(one) for one in answer.results])

    def signed(self, remedy: Remedy) -> Remedy:
        """A remedy of this chapter; what has neither command nor patch says at least what the chapter does."""
        made = remedy.command or remedy.patch or remedy.text
        text = remedy.text if made else self.title[:1].lower() + self.title[1:].rstrip(".")
        return dataclasses.replace(remedy, name=self.name, safety=self.safety, text=text)

    def _signed(self, one: Any) -> Any:
        if isinstance(one, Remedy):
            return self.signed(one)
        if not isinstance(one, Finding):
            return one
        remedy = one.remedy
        if remedy is not None:
            name = remedy.name or self.declared("remedies")[0]
            remedy = remedies()[name].signed(remedy)
        return dataclasses.replace(one, cause=self.name, remedy=remedy)


@cache
def chapters(folder: str) -> Mapping[str, Chapter]:
    """All chapters of `finitune.<folder>`, ours first, by slug."""
    package = importlib.import_module(f"finitune.{folder}")
    found = {
        slug(info.name): importlib.import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.startswith("_")
    }
    for entry in entry_points(group=f"finitune.{folder}"):
        if slug(entry.name) in found:
            continue
        try:
            found[slug(entry.name)] = entry.load()
        except Exception as error:
            warnings.warn(f"chapter {entry.value} of {folder} was left out: {error!r}", RuntimeWarning, stacklevel=2)
    return {name: Chapter(name=name, module=module) for name, module in sorted(found.items())}


def slug(module_name: str) -> str:
    """`fp16_activation_overflow` -> `fp16-activation-overflow`."""
    return module_name.rsplit(".", 1)[-1].replace("_", "-")


@dataclass(frozen=True, slots=True)
class Needs:
    """Said by `foresee`: this input is not there, and with it the chapter could say more.

    `input` is a group of `Facts`, or one entry of a group, such as "versions.deepspeed".
    """

    input: str


def needs(**inputs: Any) -> Iterator[Needs]:
    """One for each of these inputs that is None."""
    yield from (Needs(name) for name, value in inputs.items() if value is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a chapter's function said. `missing` names required inputs that were not there; then nothing was asked.

    `needs` are the inputs that it could have used besides, so that an answer without results clears nothing.
    """

    results: list[Any] = field(default_factory=list[Any])
    missing: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    broken: str | None = None


_NOTHING_SAID = Answer()


def ask(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Answer:
    """Call `function` with the inputs it names.

    An input that is absent or None makes a required parameter missing; a parameter with a default is optional.
    An exception inside the function is returned as `broken`, because one bad chapter must not silence the others.
    """
    parameters = _parameters(function)
    given = {name: value for name in parameters if (value := inputs.get(name)) is not None}
    missing = tuple(name for name, is_required in parameters.items() if is_required and name not in given)
    if missing:
        return Answer(missing=missing)
    try:
        result = function(**given)
        if result is None:  # as symptoms answer, which are asked at every step
            return _NOTHING_SAID
        results: list[Any] = list(cast("Iterator[Any]", result)) if isinstance(result, Iterator) else [result]
    except Exception as error:
        return Answer(broken=f"{type(error).__name__}: {error}")
    wanted = dict.fromkeys(one.input for one in results if isinstance(one, Needs))
    return Answer(results=[one for one in results if one is not None and not isinstance(one, Needs)], needs=(*wanted,))


def required(function: Callable[..., Any]) -> frozenset[str]:
    """The inputs without which it is not asked."""
    return frozenset(name for name, is_required in _parameters(function).items() if is_required)


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, bool]:
    """Name -> whether it is required. Symptoms are asked at every step, so the signature is read once."""
    return {name: one.default is one.empty for name, one in inspect.signature(function).parameters.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Run the captured step again under `arm`; the cause predicts the outcome `expect`.

    A placebo changes something of the same kind that the cause says is innocent, so it expects no cure.
    Placeholders: `{origin}` the module of the origin, `{sibling}` a like module elsewhere, `{tower}` the encoder of
    images or sound around it; `{short_rows}` the batch's
    token ids whose embedding rows are far too short, `{other_rows}` as many ordinary ones; `{tensor}` the weight that
    stands out, `{other_tensor}` another of its shape; `{flipped}` the weight with an element that one bit has changed,
    `{not_flipped}` another. An experiment whose placeholder has no value is not run.
    """

    arm: str
    expect: Literal["finite", "non-finite", "stuck"]
    placebo: bool = False
    optional: bool = False
    """A prediction that the cause allows but does not demand: its failure says nothing."""
    symptom: str = ""
    """Asked where this is the symptom; empty for any."""


def tells_of(chapter: Chapter) -> list[tuple[str, float, str]]:
    """The rows of the chapter's table: observation, bits for or against, and the reason."""
    table: Mapping[str, tuple[float, str]] = getattr(chapter.module, "tells", {})
    return [(name, bits, why) for name, (bits, why) in table.items()]


def causes() -> Mapping[str, Chapter]:
    """Every chapter of the cause book, by slug."""
    return chapters("causes")


Certainty = Literal["note", "suspicion", "incident"]
"""A note is recorded. A suspicion is printed once, with what would confirm it, and changes nothing. An incident is
certain; guard acts on incidents only. Statistics alone are never certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A symptom seen at `step`, in one line with its numbers; `confirm` says what would confirm a suspicion."""

    step: int
    text: str
    level: Certainty = "suspicion"
    confirm: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    symptom: str = ""
    observation: str = ""
    """The row of `observations.txt` that tells kinds of one symptom apart; else the symptom itself."""


def symptoms() -> Mapping[str, Chapter]:
    """Every symptom, by slug."""
    return chapters("symptoms")


def sightings(signals: Signals, step: int | None = None) -> list[Sighting]:
    """The symptoms present at `step`, by default the newest: of signals whose newest value is there."""
    if step is None:
        step = max((series.last_step for series in signals.values() if series), default=-1)
    there = {name: series for name, series in signals.items() if series}
    found: list[Sighting] = []
    for symptom, judged, see in _seen_by():  # twice at every step of a run, so that nothing else is looked at
        newest = there.get(judged)
        if newest is not None and newest.last_step == step:
            found += _named(symptom, ask(see, there))
    return found


def reviews(signals: Signals, *, rewards: bool = False) -> list[Sighting]:
    """The symptoms that only a look at a whole log shows, at their first step."""
    inputs: dict[str, Any] = {**{name: series for name, series in signals.items() if series}, "rewards": rewards}
    asked = [(name, chapter.function("review")) for name, chapter in symptoms().items()]
    return [seen for name, review in asked if review for seen in _named(name, ask(review, inputs))]


def _named(name: str, answer: Answer) -> list[Sighting]:
    return [dataclasses.replace(one, symptom=name, observation=one.observation or name) for one in answer.results]


@cache
def _seen_by() -> tuple[tuple[str, str, Callable[..., Any]], ...]:
    """Of every symptom its slug, the signal that it judges, and its function; asked at every step, so read once."""
    named = ((name, chapter.function("see")) for name, chapter in symptoms().items())
    return tuple((name, next(iter(_parameters(see))), see) for name, see in named if see and _parameters(see))


def remedies() -> Mapping[str, Chapter]:
    """Every remedy, by slug."""
    return chapters("remedies")


def proposed(cause: Chapter, inputs: Mapping[str, Any]) -> list[Remedy]:
    """The remedies of a cause, best first, made concrete where `inputs` allow it; none that says it does not fit."""
    out: list[Remedy] = []
    for name in cause.declared("remedies"):
        chapter = remedies().get(name)
        if chapter is None:
            continue
        answer = chapter.ask("propose", inputs)
        if answer.missing or answer.broken or chapter.function("propose") is None:
            out.append(chapter.signed(Remedy()))
        out += answer.results[:1]
    return [_explained(one, cause) for one in out]


def _explained(remedy: Remedy, cause: Chapter) -> Remedy:
    """An upgrade of a package that is not known says what the cause says of it."""
    if remedy.name != "upgrade-package" or remedy.command:
        return remedy
    clauses = [part for sentence in cause.sentences("What to do") for part in re.split(r", or |; or |; ", sentence)]
    own = next((part for part in clauses if "(upgrade-package" in part), "")
    return dataclasses.replace(remedy, text=_plain(own) or _to_do(cause) or remedy.text)


def by_hand(cause: Chapter) -> list[Remedy]:
    """What a cause says is to be done where nothing can be proposed of it: settings that only the author knows."""
    text = _to_do(cause) if "change-settings" in cause.declared("remedies") else ""
    return [remedies()["change-settings"].signed(Remedy(text=text))] if text else []


def _to_do(cause: Chapter) -> str:
    return _plain(next(iter(cause.sentences("What to do")), ""))


def _plain(text: str) -> str:
    """Without the names of remedies, as a part of a line."""
    return re.sub(r" \([a-z-]+(, [^)]*)?\)", "", text[:1].lower() + text[1:]).rstrip(".")
