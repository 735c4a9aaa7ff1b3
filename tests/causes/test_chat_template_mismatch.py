import pytest
from tests.causes.only import findings

from finitune.causes import chat_template_mismatch
from finitune.causes.chat_template_mismatch import weigh
from finitune.facts import Training, Vocabulary

foresee = findings(chat_template_mismatch.foresee)

CHATML = Vocabulary(template_markers=["<|im_start|>", "<|im_end|>"])


def training(template: str | None, model: str | None = None, **more) -> Training:
    return Training(chat_template=template, model_name=model, source="train.yaml", **more)


def test_fires_against_the_template_of_the_model_itself():
    (finding,) = foresee(training("llama3"), CHATML)
    assert finding.severity == "warning"
    assert "<|start_header_id|>" in finding.message
    assert "<|im_start|>" in finding.message


@pytest.mark.parametrize(
    ("model", "severity"),
    [("Qwen/Qwen2.5-7B-Instruct", "warning"), ("google/gemma-2-9b", "info"), ("Hermes-2-Pro-Llama-3-8B", "info")],
)
def test_fires_against_the_family_that_the_name_tells(model, severity):
    (finding,) = foresee(training("llama3", model))
    assert finding.severity == severity


def test_fires_for_the_template_of_the_family_on_its_base_model():
    (finding,) = foresee(training("llama3", "meta-llama/Meta-Llama-3-8B"))
    assert finding.severity == "info"
    assert "never trained" in finding.message


@pytest.mark.parametrize(
    ("template", "model", "vocabulary", "method"),
    [
        ("qwen", "Qwen/Qwen2.5-7B-Instruct", CHATML, None),
        ("chatml", None, CHATML, None),
        ("llama3", "meta-llama/Meta-Llama-3-8B-Instruct", None, None),
        ("default", "Qwen/Qwen2.5-7B-Instruct", CHATML, None),
        ("alpaca", "Qwen/Qwen2.5-7B", None, None),
        (None, "Qwen/Qwen2.5-7B", CHATML, None),
        ("chatml", "NousResearch/Hermes-3-Llama-3.1-8B", None, None),
        ("llama3", "Qwen/Qwen2.5-7B", None, "pt"),
        ("llama3", "own/model", None, None),
        ("chatml", "own/model", Vocabulary(template_markers=[]), None),
    ],
)
def test_stays_quiet(template, model, vocabulary, method):
    assert not list(foresee(training(template, model, method=method), vocabulary))


def test_weighs_against_it_where_a_number_is_not_finite():
    assert sum(e.bits for e in weigh(training("alpaca"), {"nonfinite-loss"})) < 0
    assert not list(weigh(training(None), {"nonfinite-loss"})), "no template was told of"
