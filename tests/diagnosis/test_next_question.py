"""The next question: how much an answer is expected to tell, and that the one that separates is asked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.diagnosis.next_question import (
    Question,
    best,
    entropy,
    expected_information,
    likelihoods,
    next_check,
    posterior,
    questions,
)
from finitune.diagnosis.ranking import experiments_of
from finitune.diagnosis.recorded import diagnose
from finitune.facts import Facts
from finitune.facts_json import facts_as_json
from finitune.finding import Evidence, RankedCause
from finitune.observations import meanings
from finitune.recording import Recorder

shares = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6).map(lambda own: [p / sum(own) for p in own])


@st.composite
def worlds(draw):
    """A prior, and P(answer | cause) for a few answers."""
    prior = draw(shares)
    answers = draw(st.integers(1, 4))
    columns = [
        draw(st.lists(st.floats(0.001, 1.0), min_size=answers, max_size=answers)) for _ in prior
    ]  # one for each cause
    return prior, [[column[at] / sum(column) for column in columns] for at in range(answers)]


@given(worlds())
def test_no_answer_is_expected_to_tell_less_than_nothing_or_more_than_is_open(world):
    prior, given = world
    told = expected_information(prior, given)
    assert 0.0 <= told <= min(entropy(prior), math.log2(len(given))) + 1e-9


@given(worlds(), st.data())
def test_nothing_is_left_to_tell_where_one_cause_is_certain(world, data):
    prior, given = world
    certain = data.draw(st.integers(0, len(prior) - 1))
    assert expected_information([float(at == certain) for at in range(len(prior))], given) == pytest.approx(0, abs=1e-9)


@given(shares, st.floats(0, 1))
def test_an_answer_that_every_cause_gives_alike_tells_nothing(prior, p):
    assert expected_information(prior, [[p] * len(prior), [1 - p] * len(prior)]) == pytest.approx(0, abs=1e-9)


@given(shares)
def test_an_answer_that_names_the_cause_tells_all(prior):
    names = [[float(at == cause) for cause in range(len(prior))] for at in range(len(prior))]
    assert expected_information(prior, names) == pytest.approx(entropy(prior))


@given(worlds(), st.randoms())
def test_the_order_of_the_answers_does_not_matter(world, random):
    prior, given = world
    shuffled = random.sample(given, len(given))
    assert expected_information(prior, shuffled) == pytest.approx(expected_information(prior, given))


def ranked(**bits: float) -> list[RankedCause]:
    """Causes with these bits, the rest of the book out of the question."""
    seen = {name.replace("_", "-"): value for name, value in bits.items()}
    return [
        RankedCause(
            cause=name, confidence=None, proved=False, bits=seen.get(name, -60.0), remedies=(),
            evidence=[Evidence(text="it was seen", bits=seen.get(name, -60.0))],
        )
        for name in sorted(causes(), key=lambda name: -seen.get(name, -60.0))
    ]  # fmt: skip


def ask(name: str, *answers: str) -> Question:
    return Question(name=name, ask=name, answers=tuple(tuple(answer.split()) for answer in answers))


ROW_OR_RATE = (
    ask("rows", "facts:rows untrained-tokens"),
    ask("rate", "lower-learning-rate-works"),
    ask("labels", "facts:labels"),
)


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        ({"untrained_token_embeddings": 4, "hardware_fault_sdc": 4}, "rows"),
        ({"lr_too_high": 4, "hardware_fault_sdc": 4}, "rate"),
        ({"all_labels_ignored": 4, "hardware_fault_sdc": 4}, "labels"),
    ],
)
def test_the_question_that_separates_what_is_left_is_asked(left, asked):
    question = best(ranked(**left), ROW_OR_RATE)
    assert question is not None
    assert question.name == asked


def test_an_experiment_separates_the_cause_that_predicts_it():
    arms = [ask("arm", "arm:loss-scale-1"), ask("other", "arm:repair-weight")]
    question = best(ranked(fp16_backward_overflow=4, comm_overlap_race=4), arms)
    assert question is not None
    assert question.name == "arm"


def test_nothing_is_asked_that_cannot_tell_or_is_known():
    left = ranked(comm_overlap_race=4, hardware_fault_sdc=4)
    assert best(left, ROW_OR_RATE) is None
    left = ranked(untrained_token_embeddings=4, hardware_fault_sdc=4)
    assert best(left, ROW_OR_RATE, {"facts:rows", "untrained-tokens"}) is None
    assert best(ranked(untrained_token_embeddings=40), ROW_OR_RATE) is None


def test_what_is_not_in_the_book_has_a_share():
    parts = posterior(ranked(lr_too_high=-5, all_labels_ignored=-5))
    assert sum(parts) == pytest.approx(1)
    assert parts[-1] == pytest.approx(1 / 3, abs=0.02)
    assert posterior(ranked(lr_too_high=4000))[0] == pytest.approx(1)


def test_the_answers_of_a_cause_sum_to_one():
    names = sorted(causes())
    for question in questions():
        columns = zip(*likelihoods(question.answers, names), strict=True)
        assert all(sum(column) == pytest.approx(1) for column in columns)


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.name)
def test_every_question_can_be_asked_and_tells_something(question):
    """Its signs exist, and some chapter speaks of each answer."""
    groups = {f"facts:{name}" for name in Facts().by_name()}
    arms = {f"arm:{e.arm.partition('=')[0]}" for name in causes() for e in experiments_of(name)}
    signs = {sign for answer in question.answers for sign in answer}
    assert signs <= set(meanings()) | groups | arms
    assert question.when
    assert set().union(question.unless, *question.when) <= set(meanings())
    for answer in question.answers:
        assert likelihoods([answer], sorted(causes()))[0] != pytest.approx([1 / 11] * (len(causes()) + 1)), answer


def test_a_proved_cause_leaves_nothing_to_ask():
    import dataclasses

    first, *rest = ranked(lr_too_high=4)
    assert next_check([dataclasses.replace(first, proved=True), *rest], {"climbed"}, {}) == ""


def test_a_question_is_always_given():
    assert next_check(ranked(), (), {})
    assert (
        next_check(ranked(comm_overlap_race=4), (), {})
        == " ".join(causes()["comm-overlap-race"].sections["How to prove"].split()).partition(". Train")[0] + "."
    )


def test_a_run_that_looked_for_itself_is_not_told_to_look():
    assert next_check(ranked(), (), {}, []) == ""


def opened(path: Path, symptom: str, *, runs_elsewhere: bool = True) -> Path:
    recorder = Recorder(path)
    recorder.step(1, loss=2.0)
    facts = facts_as_json(Facts())
    recorder.event(
        "incident", step=2, id=1, symptom=symptom, text="loss is nan", action="none", facts=facts,
        runs_elsewhere=runs_elsewhere,
    )  # fmt: skip
    origin = {"module": "layers.1.mlp", "op": "aten.mul", "phase": "forward", "dtype": "float16"}
    recorder.event("origin", step=2, incident=1, origin=origin, repeats=True, passes=1, layers=[])
    recorder.close()
    return path


def test_a_recording_names_the_experiment_that_is_left(tmp_path):
    run_dir = opened(tmp_path / "run", "nonfinite-loss")
    (incident,) = diagnose(run_dir).incidents
    assert incident.next_check == f"run the captured step again under float32: finitune diagnose {run_dir} --prove"


def test_a_step_that_no_other_process_can_run_is_not_offered(tmp_path):
    (incident,) = diagnose(opened(tmp_path / "run", "nonfinite-loss", runs_elsewhere=False)).incidents
    assert incident.next_check
    assert "--prove" not in incident.next_check


def test_a_recording_whose_experiments_were_run_asks_for_something_else(tmp_path):
    run_dir = opened(tmp_path / "run", "nonfinite-loss")
    recorder = Recorder(run_dir)
    for cause in causes():
        for one in experiments_of(cause):
            recorder.event(
                "arm", step=2, incident=1, arm=one.arm, cause=cause, expect=one.expect, result="non-finite",
                placebo=one.placebo, optional=one.optional,
            )  # fmt: skip
    recorder.close()
    (incident,) = diagnose(run_dir).incidents
    assert not any(cause.proved for cause in incident.causes)
    assert incident.next_check
    assert "--prove" not in incident.next_check


def test_logs_and_cases_ask_too(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 8)
    (incident,) = diagnose_logs(log).incidents
    assert incident.next_check.startswith("count the supervised tokens")
    told = diagnose_case({"log": ["OVERFLOW! Skipping step", "Current loss scale already at minimum"]})
    assert told.incidents[0].next_check.startswith("is there overflow at loss scale 1")
    assert diagnose_case({"title": "it does not work"}).incidents[0].next_check
