import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finitune.cli.main import main
from finitune.diagnosis.cases import FITTED, KEYS, diagnose_case, inputs_of_case, with_shares
from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.diagnosis.ranking import rank
from finitune.evidence import HINT
from finitune.finding import UnreadableInput, as_json

LOG = ["{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-08}"]


def names(**case):
    (incident,) = diagnose_case(case).incidents
    return [cause.cause for cause in incident.causes]


def test_the_same_log_with_other_settings_has_another_cause():
    """The rows of "same symptom, different cause" that settings decide."""
    assert names(log=LOG, model="Qwen2-7B", config={"fp16": True})[0] == "fp16-activation-overflow"
    zero = {"bf16": True, "zero_stage": 2, "overlap_comm": True}
    assert names(log=LOG, framework="DeepSpeed", config=zero)[0] == "comm-overlap-race"
    assert names(log=[*LOG, "UserWarning: cuDNN SDPA backward got grad_output.strides()"])[0] == "cudnn-sdpa-bug"
    refused = "ValueError: Attempting to unscale FP16 gradients."
    assert names(log=[refused])[0] == "fp16-trainable-weights"
    assert names(log=["tokenization mismatch: 9 vs. 8. (ignored)"])[0] == "all-labels-ignored"


def log(*rows):
    return [f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': {rate}}}" for loss, norm, rate in rows]


FALLING = [(round(4.0 - step / 20, 3), 1.2, 1e-5) for step in range(40)]
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
LADDER = [OVERFLOW.format(2**k, 2 ** (k - 1)) for k in range(16, 0, -1)]
MINIMUM = "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 8, in <module>',
    "ValueError: Attempting to unscale FP16 gradients.",
]


@pytest.mark.parametrize("settings", [{}, {"fp16": True}, {"bf16": True}], ids=["no config", "fp16", "bf16"])
@pytest.mark.parametrize(
    "lines",
    [
        log(*FALLING, *[("0.0", "nan", 1e-5)] * 5),
        log(*FALLING, (9.0, 40, 1e-5), (20.0, 90, 1e-5), (60.0, 400, 1e-5), ("nan", "nan", 1e-5), ("nan", "nan", 1e-5)),
        log((2.0, "nan", 1e-5), *[("0.0", "nan", 1e-5)] * 5),
        log(*[("0.0", "0.0", 1e-5)] * 6),
        log(*FALLING, ("0.0", 1.414, 2e-6), ("0.0", 1.414, 2e-6)),
        [*LADDER, MINIMUM],
        [*log(*FALLING), *TRACEBACK],
        [*log(*FALLING), "{'eval_loss': nan, 'epoch': 1.0}"],
        ["RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"],
    ],
    ids=["sudden", "climbed", "gradient first", "zero", "sentinel", "scale", "traceback", "evaluation", "sampling"],
)
def test_the_same_log_and_config_name_the_same_cause_whichever_way_they_are_given(lines, settings, tmp_path):
    path, config = tmp_path / "train.log", tmp_path / "training_args.json"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    config.write_text(json.dumps({"per_device_train_batch_size": 4, **settings}), encoding="utf-8")
    incident = diagnose_logs(path, configs=[config] if settings else []).incidents[-1]
    (told,) = diagnose_case({"log": lines, "config": settings}).incidents
    assert told.causes[0].cause == incident.causes[0].cause
    assert told.symptom == incident.symptom


def test_every_term_is_told_and_they_add_up():
    (incident,) = diagnose_case({"config": {"fp16": True}, "model": "Qwen2-7B", "log": LOG}).incidents
    for cause in incident.causes:
        assert cause.bits == pytest.approx(sum(term.bits for term in cause.evidence))
        assert not cause.proved
    assert incident.next_check


def test_an_empty_case_names_no_cause_and_says_what_is_missing():
    result = diagnose_case({})
    assert result.incidents[0].causes == []
    assert {one.input for one in result.not_checked} == {"framework", "model", "hardware", "title", "log", "config"}


def test_advice_that_was_tried_in_vain_is_named_once_with_its_reason():
    config = {"fp16": True, "learning_rate": 1e-8, "max_grad_norm": 0.1, "generate": "do_sample=False"}
    (incident,) = diagnose_case({"config": config, "model": "Qwen2-7B", "log": LOG * 3}).incidents
    first, second = incident.does_not_help
    tried = "the learning rate was 1e-08 when it failed (the log:1), gradient norm clipped at 0.1 (the case)"
    assert first == f"{tried}: the forward has already failed"
    assert second.startswith("do_sample=False (the case): NaN logits")
    (sound,) = diagnose_case({"config": {"learning_rate": 2e-5, "max_grad_norm": 1.0, "fp16": True}}).incidents
    assert sound.does_not_help == []


def test_shares_add_up_with_what_is_not_in_the_book():
    (incident,) = diagnose_case({"config": {"fp16": True}}).incidents
    shares = [one.confidence for one in incident.causes]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) + incident.unlisted < 1, "three of the causes are shown"
    ranked, unlisted = with_shares(rank(inputs_of_case({"config": {"fp16": True}})), FITTED)
    assert sum(one.confidence for one in ranked) + unlisted == pytest.approx(1)


@pytest.mark.parametrize("bits", [0.0, -40.0, 40.0, 300.0])
def test_confidence_stays_within_what_was_measured(bits):
    book = rank(inputs_of_case({}))
    ranked, _ = with_shares([dataclasses.replace(book[0], bits=bits), *book[1:]], FITTED)
    assert FITTED.lowest <= ranked[0].confidence <= FITTED.highest


def test_confidence_is_not_printed_where_it_was_not_measured(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("\n".join(LOG * 6) + "\n", encoding="utf-8")
    (incident,) = diagnose_logs(path).incidents
    assert {one.confidence for one in incident.causes} == {None}
    assert diagnose_case({}).incidents[0].unlisted is None


TITLE = "loss is nan after adding a LoRA delta to the base model"


def test_words_alone_name_no_cause_by_one_of_them():
    """`delta` is a word of adapters, and no sign of damaged weights."""
    (incident,) = diagnose_case({"title": TITLE}).incidents
    (blamed,) = (one for one in rank(inputs_of_case({"title": TITLE})) if one.cause == "corrupt-checkpoint")
    assert not any("delta" in term.text and term.bits > HINT for term in blamed.evidence)
    assert {one.confidence for one in incident.causes} <= {None}
    assert incident.unlisted is None


@pytest.mark.parametrize("more", [{"log": LOG}, {"config": {"fp16": True}}])
def test_a_case_gets_a_percentage_where_there_is_more_than_words(more):
    words = {"title": TITLE, "framework": "transformers", "model": "llama", "hardware": "A100"}
    assert {one.confidence for one in diagnose_case(words).incidents[0].causes} <= {None}
    assert all(one.confidence for one in diagnose_case({**words, **more}).incidents[0].causes)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, ANY_JSON)))
def test_whatever_json_a_case_holds_it_is_read(case):
    (incident,) = diagnose_case(case).incidents
    json.dumps(as_json(incident), allow_nan=False)


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff", "[" * 100_000, '{"fp16": {"enabled": true}}'])
def test_a_file_that_is_no_case_is_refused_in_one_line(tmp_path, text, capsys):
    path = tmp_path / "case.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableInput, match=r"case\.json"):
        diagnose_case(path)
    assert main(["diagnose", "--case", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_command_line_prints_the_contract(tmp_path, capsys):
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"config": {"fp16": True}, "log": LOG}), encoding="utf-8")
    assert main(["diagnose", "--case", str(path), "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "finitune.diagnosis/1"
    assert told["incidents"][0]["causes"][0]["evidence"][0]["bits"]
    assert main(["diagnose", "--case", str(path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("the case: ")
    assert "does not help" in out
    assert main(["diagnose", str(tmp_path), "--case", str(path)]) == 2
    assert as_json(diagnose_case(path))["verdict"] == "incident"
