"""Of several pieces of evidence about one thing the strongest counts; sizes have names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import finitune
from finitune.causes import lr_too_high
from finitune.chapter import causes
from finitune.diagnosis.ranking import evidence_of, rank
from finitune.evidence import DECISIVE, HINT, STRONG, evidence, strongest
from finitune.facts import Optimizer
from finitune.observations import Observation, meanings
from finitune.series import Series

CHAPTERS = sorted((Path(finitune.__file__).parent / "causes").glob("[a-z]*.py"))
NAMED = {"HINT", "STRONG", "DECISIVE"}
SIZES = (HINT, STRONG, DECISIVE)

terms = st.lists(
    st.builds(
        evidence, st.sampled_from(["", "loss", "origin"]), st.sampled_from([*SIZES, *(-one for one in SIZES)]),
        st.text(max_size=3),
    ),
    max_size=8,
)  # fmt: skip


@given(terms)
def test_one_for_and_one_against_of_each_thing_count(found):
    kept = strongest(found)
    assert strongest(kept) == kept
    for about in ("loss", "origin"):
        for sign in (1, -1):
            of_all = [one.bits for one in found if one.about == about and one.bits * sign > 0]
            of_kept = [one.bits for one in kept if one.about == about and one.bits * sign > 0]
            assert of_kept == ([max(of_all, key=abs)] if of_all else [])
    assert [one for one in kept if not one.about] == [one for one in found if not one.about]


def test_one_measurement_counts_once_wherever_it_is_read():
    """A climbing loss and a high learning rate are two facts, read from a log, from settings and from numbers."""
    loss = Series(range(1, 21), [2.0] * 12 + [4.0, 9.0, 20.0, 40.0, 80.0, 90.0, 95.0, 99.0])
    observed = {
        name: Observation(name=name, text=f"{name} was seen")
        for name in ("climbed", "divergence", "loss-jumped", "high-learning-rate")
    }
    inputs = {"loss": loss, "optimizer": Optimizer(name="adamw", lr=0.5), "observations": observed}
    (one,) = (cause for cause in rank(inputs) if cause.cause == "lr-too-high")
    about = [term.about for term in one.evidence if term.bits > 0]
    assert len(about) == len(set(about))
    assert sum(term.bits for term in one.evidence if term.bits > 0) <= 2 * DECISIVE
    weighed = list(lr_too_high.weigh(loss=loss, optimizer=inputs["optimizer"]))
    assert {term.about for term in weighed} <= {"loss curve", "learning rate"}


def test_the_same_words_speak_once_for_a_cause():
    """What `loss is nan from the first step` says of the loss and of the beginning is one sentence."""
    both = {name: Observation(name=name, text="the same words") for name in ("from-the-start", "first-step-lost")}
    assert len(evidence_of(causes()["corrupt-checkpoint"], both)) == 1


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_names_the_size_of_its_evidence(path):
    """Nobody sets a decimal by hand: `evidence(about, size, text)` has one of three sizes, for or against."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    sized = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "Evidence", "evidence() says what it is about"
            if node.func.id == "evidence":
                size = node.args[1]
                named = sized.get(size.id, size) if isinstance(size, ast.Name) else size
                _is_a_size(named)


def _is_a_size(node):
    if isinstance(node, ast.IfExp):
        _is_a_size(node.body)
        _is_a_size(node.orelse)
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    assert isinstance(node, ast.Name), ast.unparse(node)
    assert node.id in NAMED


def test_what_one_number_shows_is_about_one_thing():
    """Observations of the loss curve, of the first bad step and of a dtype do not add up under several names."""
    table = meanings()
    assert {table[name].about for name in ("climbed", "divergence", "loss-jumped")} == {"loss curve"}
    assert {table[name].about for name in ("from-the-start", "sudden", "midway")} == {"first bad step"}
    assert table["tiny-learning-rate"].about == table["high-learning-rate"].about == "learning rate"
