"""Files of torchtune, ms-swift and OpenRLHF are read, patched and read back in words of their own."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import finitune
from finitune.finding import UnreadableInput
from finitune.reports.sentences import do
from finitune.sources.gather import gather

TUNE = (
    "model:\n  _component_: torchtune.models.llama3.llama3_8b\n"
    "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 2e-5\ndtype: bf16  # as shipped\n"
)
SWIFT = (
    "swift sft --model a/b --torch_dtype {} --dataset d --attn_impl flash_attn --learning_rate 1e-4 --num_epochs 1\n"
)
OLD = (
    "deepspeed --module openrlhf.cli.train_sft --pretrain a/b --micro_train_batch_size 2 --bf16 --flash_attn "
    "--learning_rate 5e-6 --max_epochs 1\n"
)
DOTTED = (
    "deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path a/b --train.micro_batch_size 2 "
    "--ds.param_dtype bf16 --ds.packing_samples --adam.lr 5e-6\n"
)


def write(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def repaired(tmp_path: Path, name: str, text: str, remedy: str) -> str:
    file = write(tmp_path, name, text)
    finitune.repair(remedy, config=[file], gpu="V100", apply=True)
    return file.read_text()


@pytest.mark.parametrize(
    ("name", "text", "remedy", "old", "new"),
    [
        ("t.yaml", TUNE, "use-float32", "dtype: bf16  #", "dtype: fp32  #"),
        ("t.yaml", TUNE.replace("bf16", "fp16"), "float32-trainable-weights", "dtype: fp16", "dtype: fp32"),
        ("s.sh", SWIFT.format("bfloat16"), "fused-attention", "--attn_impl flash_attn", "--attn_impl sdpa"),
        ("s.sh", SWIFT.format("bfloat16"), "use-float16", "bfloat16", "float16"),
        ("s.sh", SWIFT.format("bfloat16"), "use-float32", "bfloat16", "float32 --fp16 False"),
        ("o.sh", OLD, "fused-attention", " --flash_attn", ""),
        ("o.sh", DOTTED, "use-float16", "bf16", "fp16"),
        ("o.sh", DOTTED, "fused-attention", "--ds.packing_samples --adam.lr 5e-6",
         "--adam.lr 5e-6 --ds.attn_implementation sdpa"),
    ],
)  # fmt: skip
def test_fires_a_patch_is_in_the_words_of_the_file(
    tmp_path: Path, name: str, text: str, remedy: str, old: str, new: str
) -> None:
    causes = {one.remedy.name: one.cause for one in checked(tmp_path, name, text).findings if one.remedy}
    assert old in text
    assert repaired(tmp_path, name, text, remedy) == text.replace(old, new)
    assert causes.get(remedy) not in {one.cause for one in finitune.check(tmp_path / name, gpu="V100").findings}


def checked(tmp_path: Path, name: str, text: str) -> finitune.CheckResult:
    return finitune.check(write(tmp_path, name, text), gpu="V100")


def test_the_do_line_is_in_these_words(tmp_path: Path) -> None:
    said = [do(one.remedy) for one in checked(tmp_path, "o.sh", DOTTED).findings if one.remedy]
    assert said == ["set ds.attn_implementation = sdpa, ds.packing_samples = false", "set ds.param_dtype = fp16"]


def test_packed_samples_that_are_needed_stay(tmp_path: Path) -> None:
    text = DOTTED.replace("--ds.packing_samples", "--ds.packing_samples --ds.ring_attn_size 2")
    findings = checked(tmp_path, "o.sh", text).findings
    (finding,) = [one for one in findings if one.cause == "flash-attention-bug"]
    assert finding.remedy
    assert finding.remedy.command is None


def test_openrlhf_without_a_dtype_trains_in_that_of_the_model(tmp_path: Path) -> None:
    reading = gather(write(tmp_path, "o.sh", OLD.replace("--bf16 ", "")))
    assert reading.facts.precision is None
    assert any("the dtype that the model is stored in" in one.why for one in reading.not_checked)
    assert "0.9.2" in next(do(one.remedy) for one in checked(tmp_path, "o.sh", OLD).findings
                           if one.remedy and one.cause == "bf16-emulated-hardware")  # fmt: skip


@pytest.mark.parametrize(("four", "fires"), [(" --ds.load_in_4bit", True), ("", False)])
def test_quantised_products_of_openrlhf_are_computed_in_bfloat16(tmp_path: Path, four: str, fires: bool) -> None:
    quantised = gather(write(tmp_path, "o.sh", DOTTED.replace("\n", f"{four}\n"))).facts.quantization
    assert (quantised is not None and quantised.compute_dtype == "bfloat16") == fires


@pytest.mark.parametrize(
    ("dtype", "compute", "parameters"), [("float16", "float32", "float32"), ("bfloat16", "bfloat16", "bfloat16")]
)
def test_adapters_and_products_of_ms_swift_follow_its_dtype(
    tmp_path: Path, dtype: str, compute: str, parameters: str
) -> None:
    facts = gather(
        write(tmp_path, "s.sh", SWIFT.format(dtype).replace("\n", " --quant_method bnb --quant_bits 4\n"))
    ).facts
    assert facts.quantization
    assert facts.precision
    assert (facts.quantization.compute_dtype, facts.precision.parameters) == (compute, parameters)
    assert "fp16-trainable-weights" not in {one.cause for one in finitune.check(tmp_path / "s.sh").findings}


def model_stored_in(folder: Path, dtype: str) -> Path:
    model = folder / "model"
    model.mkdir()
    save_file({"model.embed_tokens.weight": np.ones((8, 4), getattr(ml_dtypes, dtype, dtype))},
              model / "model.safetensors")  # fmt: skip
    (model / "config.json").write_text('{"model_type": "qwen2", "vocab_size": 8, "hidden_size": 4}')
    return model


FACTORY = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\nquantization_bit: 4\ntemplate: qwen\n"


@pytest.mark.parametrize(
    ("gpu", "torch", "stored", "fires", "computed"),
    [
        ("A100", "2.6.0", "bfloat16", None, "bfloat16"),
        ("A100", "2.6.0", "float16", None, "float16"),
        ("V100", "2.6.0", "bfloat16", "bf16-emulated-hardware", "bfloat16"),
        ("T4", "2.6.0", "float16", None, "float16"),
        ("T4", "2.1.0", "bfloat16", "quant-compute-dtype", "float16"),
    ],
)
def test_llama_factory_leaves_4_bit_products_to_card_and_model(
    tmp_path: Path, gpu: str, torch: str, stored: str, fires: str | None, computed: str
) -> None:
    model = model_stored_in(tmp_path, stored)
    versions = write(tmp_path, "requirements.txt", f"torch=={torch}\n")
    config = write(tmp_path, "a.yaml", FACTORY)
    facts = gather(config, gpu=gpu, model=model, requirements=versions).facts
    assert facts.quantization
    assert facts.precision
    assert (facts.quantization.compute_dtype, facts.precision.compute) == (computed, computed)
    assert (facts.precision.parameters, facts.precision.scaler) == ("float32", "none")
    found = finitune.check(config, gpu=gpu, model=model, requirements=versions).findings
    risks = [one for one in found if one.severity == "warning" and one.cause != "fp16-activation-overflow"]
    assert [one.cause for one in risks] == ([fires] if fires else [])
    assert all(one.where.line == 4 for one in risks)
    if fires == "quant-compute-dtype":
        assert risks[0].remedy
        assert do(risks[0].remedy).startswith("take a card with bfloat16")


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("V100", "which the card emulates"), ("A100", "or give --model DIR"), (None, "or give --gpu and --model DIR")],
)
def test_llama_factory_without_the_model_says_what_would_decide(tmp_path: Path, gpu: str | None, said: str) -> None:
    versions = write(tmp_path, "requirements.txt", "torch==2.6.0\n")
    result = finitune.check(write(tmp_path, "a.yaml", FACTORY), gpu=gpu, requirements=versions)
    assert not result.findings
    assert any(said in one.why and "without a loss scale" in one.why for one in result.not_checked)
    for switch in ("fp16: true\n", "bf16: true\n", "quantization_method: hqq\n"):
        result = finitune.check(write(tmp_path, "a.yaml", FACTORY + switch), gpu=gpu, requirements=versions)
        assert not any("without a loss scale" in one.why for one in result.not_checked)


@pytest.mark.parametrize(
    ("gpu", "stored", "fires", "computed"),
    [
        ("A100", "bfloat16", None, "bfloat16"),
        ("A100", "float16", "loss-scale-exhaustion", "float16"),
        ("V100", "bfloat16", "bf16-emulated-hardware", "bfloat16"),
    ],
)
def test_llama_factory_computes_around_an_adapter_as_card_and_model_say(
    tmp_path: Path, gpu: str, stored: str, fires: str | None, computed: str
) -> None:
    """Nothing quantised: the base is loaded in a half dtype all the same, adapters are float32, nothing is scaled."""
    model = model_stored_in(tmp_path, stored)
    plain = FACTORY.replace("quantization_bit: 4\n", "")
    versions = write(tmp_path, "requirements.txt", "torch==2.6.0\n")
    config = write(tmp_path, "a.yaml", plain)
    assert "around the adapter" in str(finitune.check(config, requirements=versions).not_checked)
    precision = gather(config, gpu=gpu, model=model, requirements=versions).facts.precision
    assert precision
    assert (precision.compute, precision.parameters, precision.scaler) == (computed, "float32", "none")
    found = {one.cause: one for one in finitune.check(config, gpu=gpu, model=model, requirements=versions).findings}
    assert list(found) == ([fires] if fires else [])
    assert fires is None or found[fires].where.line == 3
    for other in ("fp16: true\n", "finetuning_type: full\n", "pure_bf16: true\n"):
        text = plain.replace("finetuning_type: lora\n", "") + other if "type" in other else plain + other
        assert "around the adapter" not in str(finitune.check(write(tmp_path, "b.yaml", text)).not_checked)


MEGATRON = "NPROC_PER_NODE=4 megatron sft --model a/b --dataset d --lr {} --micro_batch_size 2 {}\n"


@pytest.mark.parametrize(
    ("more", "compute", "lora"),
    [("--torch_dtype bfloat16 --tuner_type full", "bfloat16", False),
     ("--torch_dtype float16 --tuner_type lora", "float16", True),
     ("--bf16 true", "bfloat16", None), ("", None, None)],
)  # fmt: skip
def test_ms_swift_through_megatron(tmp_path: Path, more: str, compute: str | None, lora: bool | None) -> None:
    reading = gather(write(tmp_path, "m.sh", MEGATRON.format("1e-5", more)))
    assert "m.sh as ms-swift through Megatron: a/b" in reading.understood[0]
    assert reading.facts.optimizer
    assert (reading.facts.optimizer.lr, reading.facts.optimizer.lora) == (1e-5, lora)
    assert (reading.facts.precision.compute if reading.facts.precision else None) == compute
    assert any("the dtype that the model is stored in" in one.why for one in reading.not_checked) == (compute is None)
    result = finitune.check(write(tmp_path, "m.sh", MEGATRON.format("0.5", more)), gpu="A100")
    assert [one.cause for one in result.findings if one.severity == "error"] == ["lr-too-high"]


def test_a_file_says_what_the_launch_leaves_to_a_default(tmp_path: Path) -> None:
    for tuner in ("full", "lora"):
        write(tmp_path, "a.yaml", f"model: a/b\ntuner_type: {tuner}\ntorch_dtype: bfloat16\nmicro_batch_size: 2\n")
        result = finitune.check(write(tmp_path, "m.sh", "megatron sft --config a.yaml\n"), gpu="A100")
        assert not result.findings
        assert any("a.yaml, named by" in one and "bf16" in one for one in result.understood)


@pytest.mark.parametrize("verb", ["infer", "deploy", "export"])
def test_other_verbs_of_ms_swift_train_nothing(tmp_path: Path, verb: str) -> None:
    with pytest.raises(UnreadableInput, match="no command that launches a trainer"):
        gather(write(tmp_path, "m.sh", f"megatron {verb} --model a/b --torch_dtype bfloat16\n"))
