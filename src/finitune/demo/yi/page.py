"""The story as an HTML page."""

from __future__ import annotations

from finitune.demo.stage import Outcome, Stage, Step
from finitune.reports.html import Line, Section, story
from finitune.series import Series

INTRODUCTION = """A base model was trained on plain text, so the embedding row of <|im_start|> was never used and weight
decay has left almost nothing of it. Every conversation begins with it. Attention cannot help the first position, so
each normalisation multiplies its gradient by up to 1/sqrt(eps) = 316 on the way back, until float16 cannot hold it. The
loss stays finite all the while; the loss scaler takes every such step for a scale that is too high.

The model is small and was trained on this machine; the mechanism, the loss scaler and its last words are those of
01-ai/Yi#285."""


def render(stage: Stage) -> str:
    """The page of a story that has been told."""
    sound = all(step.sound for step in stage.steps)
    sections = [Section(title="Six steps", table=_table(stage.steps))]
    sections += [_section(number, step) for number, step in enumerate(stage.steps, start=1)]
    return story(
        "A float16 fine-tune that died, and why" if sound else "The story did not go as told",
        sections,
        subject=str(stage.directory),
        text=INTRODUCTION,
        lines=[Line(label="the run's own report", text="guarded/report.html")],
        tone="good" if sound else "bad",
    )


def _table(steps: list[Step]) -> list[list[str]]:
    rows = [
        [f"{number} {step.title}", "as told" if step.sound else "NOT as told", step.result, f"{step.seconds:.0f}"]
        for number, step in enumerate(steps, start=1)
    ]
    return [["step", "", "result", "seconds"], *rows]


def _section(number: int, step: Step) -> Section:
    trained = [outcome for outcome in step.outcomes if outcome.steps]
    return Section(
        title=f"{number}. {step.title}",
        text=step.result,
        table=step.table,
        terminal="\n\n".join(_terminal(outcome) for outcome in step.outcomes),
        chart=_chart(trained[0]) if trained else {},
        log=bool(trained) and not _finished(trained[0]),
    )


def _chart(outcome: Outcome) -> dict[str, Series]:
    """The loss of a run that finished, the loss scale of one that did not."""
    name = "loss" if _finished(outcome) else "loss_scale"
    series = Series((int(step["step"]) for step in outcome.steps), (step[name] for step in outcome.steps))
    return {name.replace("_", " "): series}


def _finished(outcome: Outcome) -> bool:
    return len(outcome.evaluations) > 1


def _terminal(outcome: Outcome) -> str:
    said = "" if outcome.output.startswith("{") else outcome.output  # JSON is for the table
    return f"{outcome.command}\n{said}".rstrip()
