import dataclasses
import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.reports.sarif_schema import valid_log
from tests.sources import worlds
from tests.sources.worlds import chat, jsonl, settings

from finitune import preflight
from finitune.chapter import Chapter, causes
from finitune.finding import Finding, NotChecked, UnreadableInput, as_json
from finitune.preflight import foresee
from finitune.repairs.repair import repair
from finitune.sources.result import Reading


def check(*configs, **more):
    """What `check` says; every world of this file gives valid SARIF too."""
    result = preflight.check(*configs, **more)
    if importlib.util.find_spec("jsonschema"):
        valid_log(result)
    return result


def yi(tmp_path, size: float = 1e-8):
    """The founding incident: ChatML data on a base model whose two marker rows were never trained, in float16."""
    pytest.importorskip("tokenizers")
    weights = worlds.tensors()
    rng = np.random.default_rng(9)
    weights["model.embed_tokens.weight"][6:8] = (rng.standard_normal((2, worlds.HIDDEN)) * size).astype(
        ml_dtypes.bfloat16
    )
    return {
        "config": settings(tmp_path / "ds.json", fp16={"enabled": True}, train_micro_batch_size_per_gpu=1),
        "model": worlds.model(tmp_path / "yi", weights),
        "data": jsonl(tmp_path / "data.jsonl", [chat(), chat("what", "it is")]),
    }


def check_world(world, **more):
    return check(world["config"], model=world["model"], data=world["data"], **more)


def by_cause(result) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in result.findings:
        found.setdefault(finding.cause, []).append(finding)
    return found


def test_a_healthy_run_passes_every_cause_and_finds_nothing(tmp_path):
    pytest.importorskip("tokenizers")
    result = check(
        settings(tmp_path / "a.json", bf16=True, learning_rate=2e-5, per_device_train_batch_size=4),
        model=worlds.model(tmp_path / "m"),
        data=jsonl(tmp_path / "d.jsonl", [chat()]),
        gpu="A100",
    )
    assert result.verdict == "ok"
    assert not result.findings
    assert not result.not_checked
    assert {*result.passed, *result.nothing_to_say} == {
        name for name, chapter in causes().items() if chapter.function("foresee")
    }
    assert {"lr-too-high", "untrained-token-embeddings", "fp16-activation-overflow"} <= set(result.passed)
    assert {"quant-compute-dtype", "comm-overlap-race"} <= set(result.nothing_to_say)


def test_a_healthy_float16_run_of_a_float16_model_finds_nothing(tmp_path):
    result = check(
        settings(tmp_path / "a.json", fp16=True, learning_rate=2e-4, use_peft=True),
        model=worlds.model(tmp_path / "m", worlds.tensors(dtype="float16")),
        data=jsonl(tmp_path / "d.jsonl", [chat()]),
        gpu="V100",
    )
    assert not result.findings


@pytest.mark.parametrize("size", [1e-5, 1e-8, 0.0])
def test_the_founding_incident_is_foreseen_with_tokens_numbers_and_a_command(tmp_path, size):
    world = yi(tmp_path, size)
    result = check_world(world, gpu="V100")
    assert result.verdict == "broken"
    finding = result.findings[0]
    assert finding.cause == "untrained-token-embeddings"
    assert finding.severity == "error"
    assert finding.where.tokens == [6]
    assert finding.where.file == str(world["model"] / "model.safetensors")
    assert finding.evidence["row_rms"] == pytest.approx(size, rel=0.5)
    assert finding.evidence["first_positions"] == 2
    assert "<|im_start|>" in finding.message
    assert finding.remedy.name == "reinit-token-rows"
    assert [f.where.tokens for f in by_cause(result)["untrained-token-embeddings"]] == [[6], [7]]


def test_the_printed_command_cures_what_was_found(tmp_path):
    world = yi(tmp_path)
    finding = check_world(world).findings[0]
    words = shlex.split(finding.remedy.command)
    assert words[:3] == ["finitune", "repair", "reinit-token-rows"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    repair(words[2], **{option.removeprefix("--"): value for option, value in options.items()})
    after = check_world({**world, "model": options["--output"]})
    assert "untrained-token-embeddings" not in by_cause(after)


def test_a_trained_bos_in_front_makes_the_same_rows_benign(tmp_path):
    world = yi(tmp_path)
    worlds.add_tokenizer(world["model"], chat_template="{{ bos_token }} " + worlds.CHATML)
    findings = by_cause(check_world(world))["untrained-token-embeddings"]
    assert {f.severity for f in findings} == {"info"}


def test_bfloat16_weights_in_float16_are_a_warning_for_a_family_on_record_and_no_finding_else(tmp_path):
    config = settings(tmp_path / "a.json", fp16=True)
    assert not check(config, model=worlds.model(tmp_path / "llama", model_type="llama")).findings
    result = check(config, model=worlds.model(tmp_path / "qwen2", model_type="qwen2"))
    assert result.verdict == "at-risk"
    (finding,) = by_cause(result)["fp16-activation-overflow"]
    assert finding.where.key == "fp16"
    assert finding.remedy.patch == {"fp16": False, "bf16": True}


def test_the_remedy_fits_the_card(tmp_path):
    model = worlds.model(tmp_path / "m", model_type="qwen2")
    arguments = settings(tmp_path / "a.json", fp16=True)
    assert check(arguments, model=model, gpu="A100").findings[0].remedy.name == "use-bfloat16"
    assert check(arguments, model=model, gpu="V100").findings[0].remedy.name == "use-float32"


def test_weights_beyond_the_range_of_float16_are_an_error(tmp_path):
    weights = worlds.tensors()
    weights["model.layers.0.mlp.down_proj.weight"][3, 5] = 70000
    result = check(settings(tmp_path / "a.json", fp16=True), model=worlds.model(tmp_path / "m", weights))
    (finding,) = by_cause(result)["fp16-activation-overflow"]
    assert finding.severity == "error"
    assert finding.where.tensor == "model.layers.0.mlp.down_proj.weight"
    assert not check(settings(tmp_path / "b.json", bf16=True), model=tmp_path / "m").findings


def test_a_damaged_model_is_a_finding_not_an_exception(tmp_path):
    model = worlds.model(tmp_path / "m")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    result = check(model=model)
    assert [f.cause for f in result.findings] == ["corrupt-checkpoint"]
    assert result.findings[0].severity == "error"
    assert result.findings[0].remedy.name == "restore-weights"


def test_one_nan_among_the_weights_is_found(tmp_path):
    weights = worlds.tensors()
    weights["model.layers.0.self_attn.q_proj.weight"][2, 9] = np.nan
    (finding,) = check(model=worlds.model(tmp_path / "m", weights)).findings
    assert finding.evidence["first_nonfinite"] == [2, 9]


def test_rows_without_labels_and_the_printed_command(tmp_path):
    pytest.importorskip("tokenizers")
    rows = [{"prompt": "what is ", "completion": "forty two"}, {"prompt": "what is the ", "completion": "it"}] * 3
    world = {
        "config": settings(tmp_path / "a.json", bf16=True, max_length=3, per_device_train_batch_size=1),
        "model": worlds.model(tmp_path / "m"),
        "data": jsonl(tmp_path / "d.jsonl", rows),
    }
    (finding,) = check_world(world).findings
    assert (finding.cause, finding.severity) == ("all-labels-ignored", "error")
    assert finding.where.rows == [1, 3, 5]
    words = shlex.split(finding.remedy.command)
    options = {o.removeprefix("--"): v for o, v in zip(words[3::2], words[4::2], strict=True)}
    repair(words[2], **options)
    assert check_world({**world, "data": options["output"]}).verdict == "ok"


def test_findings_come_gravest_first(tmp_path):
    world = yi(tmp_path)
    world["config"] = settings(tmp_path / "a.json", fp16=True, learning_rate=6e-3)
    severities = [f.severity for f in check_world(world).findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert set(severities) == {"error", "warning", "info"}


def test_nothing_given_is_nothing_checked_once_per_input():
    result = check()
    assert result.verdict == "incomplete"
    assert not result.passed
    assert sorted(entry.input for entry in result.not_checked) == ["config", "data", "gpu", "model"]


def test_each_input_that_is_not_there_is_named_once(tmp_path):
    result = check(model=worlds.model(tmp_path / "m", tokenizer=False), data=jsonl(tmp_path / "d.jsonl", [chat()]))
    entries = {entry.input: entry.why for entry in result.not_checked}
    assert set(entries) == {"config", "data", "gpu", "model"}
    assert "no tokenizer.json" in entries["data"]
    assert "vocabulary" in entries["model"]
    assert result.passed == [
        "corrupt-checkpoint", "moe-router", "nan-saved-in-checkpoint", "uninitialised-weights", "weight-tying-broken"
    ]  # fmt: skip
    assert "lr-too-high" in result.not_asked["config"]
    assert "untrained-token-embeddings" in result.not_asked["data"]


def test_a_config_that_says_nothing_about_precision_is_not_silence_about_it(tmp_path):
    result = check(settings(tmp_path / "a.json", learning_rate=1e-5), model=worlds.model(tmp_path / "m"))
    assert "precision" in {e.input: e.why for e in result.not_checked}["config"]
    assert "fp16-activation-overflow" not in result.passed


def test_a_broken_chapter_silences_no_other(monkeypatch, tmp_path):
    broken = type("M", (), {"foresee": staticmethod(lambda weights: 1 / 0)})
    book = {"broken-cause": Chapter(name="broken-cause", module=broken), **causes()}
    monkeypatch.setattr("finitune.preflight.causes", lambda: book)
    result = check(model=worlds.model(tmp_path / "m"))
    assert "corrupt-checkpoint" in result.passed
    assert "broken-cause" not in result.passed
    assert "ZeroDivisionError" in {e.input: e.why for e in result.not_checked}["broken-cause"]


def test_a_chapter_of_a_third_party_needs_no_registration_here(monkeypatch):
    def own(versions):
        yield Finding(cause="own", severity="warning", message="seen")

    chapter = Chapter(name="own", module=type("M", (), {"foresee": staticmethod(own), "remedies": ["no-such-remedy"]}))
    monkeypatch.setattr("finitune.preflight.causes", lambda: {"own": chapter})
    result = check()
    assert [f.cause for f in result.findings] == ["own"]
    assert result.findings[0].remedy is None


def test_the_result_is_strict_json(tmp_path):
    world = yi(tmp_path, 0.0)
    text = json.dumps(as_json(check_world(world, gpu="V100")), allow_nan=False)
    data = json.loads(text)
    assert data["schema"] == "finitune.check/1"
    assert data["verdict"] == "broken"
    assert data["findings"][0]["where"]["tokens"] == [6]


def test_short_rows_of_ordinary_tokens_get_their_names_too(tmp_path):
    pytest.importorskip("tokenizers")
    world = yi(tmp_path)
    weights = worlds.tensors()
    word = world["model"] / "tokenizer.json"
    id_ = json.loads(word.read_text())["model"]["vocab"]["user"]
    weights["model.embed_tokens.weight"][id_] = 0
    worlds.model(world["model"], weights)
    (finding,) = by_cause(check_world(world))["untrained-token-embeddings"]
    assert f"{id_} user" in finding.message


@pytest.mark.parametrize(
    "given", [{"model": "absent"}, {"data": "absent"}, {"gpu": "absent"}, {"requirements": "absent"}]
)
def test_an_input_that_cannot_be_used_is_unreadable(given):
    with pytest.raises(UnreadableInput, match="absent"):
        check(**given)


def test_one_entry_per_input_joins_the_reasons():
    reading = Reading(
        not_checked=[
            NotChecked(input="data", why="a"),
            NotChecked(input="data", why="b"),
            NotChecked(input="data", why="a"),
        ]
    )
    entries = {e.input: e.why for e in foresee(reading.facts, reading.not_checked).not_checked}
    assert entries["data"] == "a; b"


def test_findings_are_values():
    assert dataclasses.is_dataclass(check())


T5 = "google/flan-t5-xl"
NAMED = {
    "a.json": f'{{"fp16": true, "learning_rate": 1e-5, "model_name_or_path": "{T5}"}}',
    "a.sh": f"torchrun t.py --fp16 --model_name_or_path {T5} --learning_rate 1e-5\n",
    "b.sh": f"accelerate launch --mixed_precision fp16 t.py --model_name_or_path {T5} --learning_rate 1e-5\n",
    "a.yml": f"base_model: {T5}\nfp16: true\nlearning_rate: 1.0e-5\n",
    "l.yaml": f"stage: sft\ntemplate: x\nfinetuning_type: full\nmodel_name_or_path: {T5}\nfp16: true\n",
    "u.yaml": f"model_type: llm\nbase_model: {T5}\nquantization: {{bits: 4}}\n",
}


@pytest.mark.parametrize("name", NAMED)
def test_a_family_on_record_is_a_warning_in_every_format_that_names_it(tmp_path, name):
    (tmp_path / name).write_text(NAMED[name])
    result = check(tmp_path / name)
    (finding,) = [one for one in result.findings if one.cause == "fp16-activation-overflow"]
    assert (finding.severity, finding.evidence["family"]) == ("warning", "t5")
    (missing,) = [one.why for one in result.not_checked if one.input == "model"]
    assert missing.startswith(f"{T5}, which ")
    assert "is not on this machine" in missing


def test_a_name_alone_clears_no_cause_that_lies_in_the_model(tmp_path):
    (tmp_path / "a.json").write_text('{"bf16": true, "model_name_or_path": "meta-llama/Llama-2-7b-hf"}')
    assert not {"fp16-activation-overflow", "norm-eps-underflow-fp16"} & set(check(tmp_path / "a.json").passed)


EXAMPLE = Path(__file__).parent.parent / "examples" / "medicalgpt"
OF_DEEPSPEED = {"comm-overlap-race", "deepspeed-version-regression"}


@pytest.mark.parametrize("beside", [["run_sft.sh", "zero2.json"], ["run_sft.sh"]])
def test_what_depends_on_an_unknown_version_is_not_passed(tmp_path, monkeypatch, beside):
    monkeypatch.setattr("finitune.sources.environment.read", lambda _=None: {})
    for name in beside:
        shutil.copy(EXAMPLE / name, tmp_path)
    result = check(tmp_path / "run_sft.sh", gpu="A100")
    assert not result.findings
    assert not OF_DEEPSPEED & {*result.passed, *result.nothing_to_say}
    assert {(one.input, one.why) for one in result.not_checked} >= {
        ("versions", f"{cause}: version of deepspeed unknown, give --requirements") for cause in OF_DEEPSPEED
    }


def test_with_the_version_the_same_causes_are_errors(tmp_path):
    for name in ("run_sft.sh", "zero2.json"):
        shutil.copy(EXAMPLE / name, tmp_path)
    (tmp_path / "r.txt").write_text("deepspeed==0.12.5\n")
    result = check(tmp_path / "run_sft.sh", gpu="A100", requirements=tmp_path / "r.txt")
    assert {one.cause for one in result.findings if one.severity == "error"} == OF_DEEPSPEED
    assert result.verdict == "broken"
