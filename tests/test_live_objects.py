"""What a program or a notebook holds in memory is checked and shown like files."""

import pytest
from tests.sources import worlds

import finitune
from finitune.finding import UnreadableInput

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def arguments(tmp_path, **said):
    return transformers.TrainingArguments(str(tmp_path / "o"), report_to=[], use_cpu=True, **said)


@pytest.fixture
def held(tmp_path):
    """A model of 2 layers with one embedding row that was never trained, its tokenizer, and rows that use it."""
    folder = worlds.model(tmp_path / "m")
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight[6] = 1e-9
    return model, transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


def test_fires_for_arguments_in_memory(tmp_path):
    (found,) = [
        one for one in finitune.check(arguments(tmp_path, learning_rate=0.9)).findings if one.severity == "error"
    ]
    assert found.cause == "lr-too-high"


def test_fires_for_a_model_its_tokenizer_and_rows_in_memory(tmp_path, held):
    model, tokenizer = held
    rows = [{"input_ids": [1, 6, 7, 8], "labels": [1, 6, 7, 8]}] * 4
    result = finitune.check(model=model, tokenizer=tokenizer, dataset=rows, args=arguments(tmp_path), gpu="V100")
    (found,) = [one for one in result.findings if one.cause == "untrained-token-embeddings"]
    assert found.where.tokens == [6]
    assert found.where.file == "MODEL/model.safetensors"
    assert "finitune-" not in str(result)


def test_stays_quiet_about_healthy_ones(tmp_path, held):
    model, tokenizer = held
    rows = [{"input_ids": [1, 7, 8, 9], "labels": [1, 7, 8, 9]}] * 4
    result = finitune.check(model=model, tokenizer=tokenizer, dataset=rows, args=arguments(tmp_path), gpu="A100")
    assert "untrained-token-embeddings" not in {one.cause for one in result.findings}


@pytest.mark.parametrize("given", [{"model": 3}, {"tokenizer": 3}, {"dataset": 3}, {"dataset": [[1]]}, {"args": 3}])
def test_what_says_nothing_of_itself_is_one_line(given):
    with pytest.raises(UnreadableInput) as refused:
        finitune.check(**given)
    assert "\n" not in str(refused.value)


def test_results_are_printed_as_the_command_line_prints_them(tmp_path):
    result = finitune.check({"learning_rate": 0.9})
    assert str(result).startswith("the settings given") or "error" in str(result)
    assert "lr-too-high" in str(result)
    assert result._repr_html_().startswith("<pre>")
    (tmp_path / "a.log").write_text("step 1: loss 2.0\nstep 2: loss nan\nstep 3: loss nan\n")
    assert "the loss of step 2 is nan" in str(finitune.diagnose(tmp_path / "a.log"))


def test_the_names_of_the_readme_are_there():
    assert finitune.integrations.TrainerCallback()
    assert {"check", "diagnose", "repair", "report", "watch", "integrations"} <= set(dir(finitune))
    assert not {"Any", "annotations", "importlib"} & set(dir(finitune))
    assert isinstance(finitune.check({"learning_rate": 1e-5}), finitune.CheckResult)
    with pytest.raises(finitune.InputError, match=r"nosuch.yaml: no such file"):
        finitune.check("nosuch.yaml")
