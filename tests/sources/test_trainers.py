"""Configurations of Ludwig, Axolotl, LLaMA-Factory and accelerate, as people write them."""

import textwrap

import pytest
from tests.sources.worlds import settings

from finitune.finding import UnreadableInput
from finitune.sources.configs import axolotl, llamafactory, ludwig
from finitune.sources.gather import gather
from finitune.sources.result import Supervision


def facts_of(tmp_path, text, name="config.yaml"):
    (tmp_path / name).write_text(textwrap.dedent(text))
    return gather(tmp_path / name).facts


LUDWIG = """
    model_type: llm
    base_model: mistralai/Mistral-7B-v0.1
    quantization:
      bits: 4
    adapter:
      type: lora
    input_features: [{name: instruction, type: text}]
    output_features: [{name: output, type: text}]
    preprocessing:
      split: {type: random, probabilities: [0.9, 0.05, 0.05]}
      global_max_sequence_length: 512
    trainer:
      type: finetune
      batch_size: 2
      epochs: 1
      learning_rate: 2e-5
      enable_gradient_checkpointing: true
      learning_rate_scheduler: {decay: cosine, warmup_fraction: 0.03}
"""


def test_ludwig_computes_in_its_own_default(tmp_path):
    facts = facts_of(tmp_path, LUDWIG)
    assert facts.quantization.bits == 4
    assert facts.quantization.compute_dtype == "float16"
    assert facts.quantization.compute_dtype_is_default is True
    assert (facts.precision.compute, facts.precision.scaler) == ("float16", "none")
    assert (facts.attention.implementation, facts.attention.dtype) == ("eager", "float32")
    assert (facts.batching.padding_side, facts.batching.pad_id, facts.batching.max_length) == ("left", 0, 512)
    assert facts.adapter.kind == "lora"
    optimizer = facts.optimizer
    assert (optimizer.lr, optimizer.batch, optimizer.warmup_ratio, optimizer.clip) == (2e-5, 2, 0.03, 0.5)
    assert optimizer.lora is True
    assert facts.training.model_name == "mistralai/Mistral-7B-v0.1"
    assert facts.training.gradient_checkpointing is True
    assert facts.unknown_keys == []


def test_ludwig_with_a_compute_dtype_and_automatic_sizes(tmp_path):
    text = LUDWIG.replace("bits: 4", "bits: 4\n      bnb_4bit_compute_dtype: bfloat16").replace("size: 2", "size: auto")
    facts = facts_of(tmp_path, text)
    assert facts.precision.compute == facts.quantization.compute_dtype == "bfloat16"
    assert facts.quantization.compute_dtype_is_default is False
    assert facts.optimizer.batch is None


def test_ludwig_mixed_precision_and_clipping(tmp_path):
    text = """
        model_type: llm
        base_model: a/b
        trainer: {use_mixed_precision: true, gradient_clipping: {clipglobalnorm: 1.0}, batch_sise: 4}
    """
    facts = facts_of(tmp_path, text)
    assert (facts.precision.compute, facts.precision.scaler) == ("float16", "dynamic")
    assert facts.optimizer.clip == 1.0
    assert [(k.key, k.near[0]) for k in facts.unknown_keys] == [("trainer.batch_sise", "trainer.batch_size")]
    assert ludwig.supervision({}, "c.yaml") == Supervision(completion_only=True)


AXOLOTL = """
    base_model: NousResearch/Llama-2-7b-hf
    load_in_4bit: true
    adapter: qlora
    lora_r: 32
    lora_alpha: 16
    lora_target_linear: true
    datasets: [{path: mhenrichsen/alpaca_2k_test, type: alpaca}]
    sequence_len: 4096
    sample_packing: true
    gradient_accumulation_steps: 4
    micro_batch_size: 2
    num_epochs: 4
    optimizer: paged_adamw_32bit
    lr_scheduler: cosine
    learning_rate: 0.0002
    train_on_inputs: false
    bf16: auto
    gradient_checkpointing: true
    flash_attention: true
    warmup_steps: 10
    weight_decay: 0.0
    special_tokens: {pad_token: "</s>"}
    deepspeed: deepspeed_configs/zero2.json
"""


def test_axolotl_leaves_auto_to_the_card_and_its_own_files_to_itself(tmp_path):
    (tmp_path / "c.yml").write_text(textwrap.dedent(AXOLOTL))
    reading = gather(tmp_path / "c.yml")
    facts = reading.facts
    assert facts.precision is None
    assert (facts.quantization.bits, facts.quantization.kind, facts.quantization.compute_dtype) == (4, "nf4", None)
    assert (facts.adapter.kind, facts.adapter.rank, facts.adapter.alpha) == ("lora", 32, 16)
    assert facts.adapter.target_modules == ["all-linear"]
    assert facts.attention.implementation == "flash_attention_2"
    assert (facts.batching.packing, facts.batching.max_length, facts.batching.pad_token) == (True, 4096, "</s>")
    assert (facts.optimizer.batch, facts.optimizer.accumulation, facts.optimizer.warmup_steps) == (2, 4, 10)
    assert facts.training.train_on_prompt is False
    assert facts.unknown_keys == []
    assert "deepspeed_configs/zero2.json, which is not here" in reading.not_checked[0].why


@pytest.mark.parametrize(
    ("said", "compute", "parameters", "scaler"),
    [
        ({"fp16": True}, "float16", None, "dynamic"),
        ({"bf16": True}, "bfloat16", None, "none"),
        ({"bf16": "full"}, "bfloat16", None, "none"),
        ({"float16": True}, "float16", "float16", "none"),
        ({"bfloat16": True, "bf16": False}, "bfloat16", "bfloat16", "none"),
        ({"bf16": False, "fp16": False}, "float32", None, "none"),
    ],
)
def test_precision_in_axolotl(said, compute, parameters, scaler):
    precision = axolotl.read({"base_model": "x", **said}, "c.yml").precision
    assert (precision.compute, precision.parameters, precision.scaler) == (compute, parameters, scaler)


def test_full_fine_tuning_in_axolotl_is_said_in_so_many_words():
    facts = axolotl.read({"base_model": "x", "learning_rate": 1e-5}, "c.yml")
    assert facts.adapter.kind == "none"
    assert facts.optimizer.lora is False
    assert axolotl.supervision({"sequence_len": 8, "train_on_inputs": False}, "c").completion_only is True


LLAMA_FACTORY = """
    model_name_or_path: Qwen/Qwen2-7B-Instruct
    stage: sft
    do_train: true
    finetuning_type: lora
    lora_target: all
    lora_rank: 8
    dataset: identity
    template: qwen
    cutoff_len: 2048
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 8
    learning_rate: 1.0e-4
    num_train_epochs: 3.0
    lr_scheduler_type: cosine
    warmup_ratio: 0.1
    fp16: true
    quantization_bit: 4
    flash_attn: disabled
    deepspeed: ds.json
"""


def test_llama_factory_keeps_trainable_weights_in_float32(tmp_path):
    settings(tmp_path / "ds.json", zero_optimization={"stage": 2, "overlap_comm": True}, fp16={"enabled": "auto"})
    facts = facts_of(tmp_path, LLAMA_FACTORY)
    assert (facts.precision.compute, facts.precision.parameters) == ("float16", "float32")
    assert (facts.adapter.rank, facts.adapter.alpha, facts.adapter.target_modules) == (8, 16, ["all"])
    assert (facts.quantization.bits, facts.quantization.compute_dtype) == (4, "float16")
    assert facts.attention.implementation == "eager"
    assert (facts.parallel.zero_stage, facts.parallel.overlap_comm) == (2, True)
    assert facts.training.framework == "llama-factory"
    assert facts.training.chat_template == "qwen"
    assert facts.batching.max_length == 2048
    assert facts.disagreements == facts.unknown_keys == []


def test_llama_factory_full_and_pure():
    said = {"stage": "sft", "finetuning_type": "full", "dataset": "d", "pure_bf16": True, "learning_rate": 1e-5}
    facts = llamafactory.read(said, "c.yaml")
    assert (facts.precision.compute, facts.precision.parameters) == ("bfloat16", "bfloat16")
    assert facts.adapter.kind == "none"
    assert facts.optimizer.lora is False
    supervision = llamafactory.supervision({"cutoff_len": 10, "neat_packing": True}, "c.yaml")
    assert supervision == Supervision(max_length=10, completion_only=True, assistant_only=True, packing=True)


ACCELERATE = """
    compute_environment: LOCAL_MACHINE
    distributed_type: DEEPSPEED
    mixed_precision: fp16
    num_machines: 1
    num_processes: 8
    deepspeed_config:
      gradient_accumulation_steps: 4
      gradient_clipping: 1.0
      offload_optimizer_device: cpu
      offload_param_device: none
      zero_stage: 2
"""


def test_accelerate_with_deepspeed_settings_in_place(tmp_path):
    facts = facts_of(tmp_path, ACCELERATE)
    assert (facts.precision.compute, facts.precision.scaler) == ("float16", "dynamic")
    parallel = facts.parallel
    assert (parallel.kind, parallel.world, parallel.nodes, parallel.zero_stage) == ("deepspeed", 8, 1, 2)
    assert (parallel.offload_optimizer, parallel.offload_parameters) == ("cpu", "none")
    assert (facts.optimizer.accumulation, facts.optimizer.clip) == (4, 1.0)
    assert facts.unknown_keys == []


def test_accelerate_follows_a_deepspeed_file(tmp_path):
    settings(tmp_path / "ds.json", bf16={"enabled": True}, zero_optimization={"stage": 3})
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: true}\n"
    facts = facts_of(tmp_path, text)
    assert (facts.precision.compute, facts.parallel.zero_stage) == ("bfloat16", 3)


def test_accelerate_no_leaves_precision_to_the_trainer_and_fsdp_is_seen(tmp_path):
    text = "distributed_type: FSDP\nmixed_precision: no\nuse_cpu: false\nfsdp_config: {fsdp_offload_params: true}\n"
    facts = facts_of(tmp_path, text)
    assert facts.precision is None
    assert (facts.parallel.kind, facts.parallel.offload_optimizer) == ("fsdp", "cpu")


def test_the_trainer_overrides_the_launcher(tmp_path):
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: fp16\n")
    facts = gather(tmp_path / "acc.yaml", settings(tmp_path / "a.json", bf16=True, learning_rate=1e-5)).facts
    assert facts.precision.compute == "bfloat16"
    assert [d.key for d in facts.disagreements] == ["precision.compute"]


def test_a_value_that_is_no_choice_is_named(tmp_path):
    facts = facts_of(tmp_path, "distributed_type: MULTI_GPU\nmixed_precision: fp61\n")
    (found,) = facts.unknown_keys
    assert (found.key, found.value, found.near[0]) == ("mixed_precision", "fp61", "fp16")
    assert found.release == "accelerate 1.15.0"


@pytest.mark.parametrize(
    "text",
    [
        "base_model: x\nlearning_rate: fast\n",
        "model_type: llm\nbase_model: x\ntrainer: {learning_rate: fast}\n",
        "stage: sft\ntemplate: x\nlearning_rate: fast\n",
    ],
)
def test_a_wrong_value_is_one_line(tmp_path, text):
    with pytest.raises(UnreadableInput, match="learning_rate: 'fast'"):
        facts_of(tmp_path, text)


@pytest.mark.parametrize(
    ("zero", "offload"),
    [
        ({"stage": 2, "cpu_offload": True}, "cpu"),
        ({"stage": 2, "cpu_offload": False}, "none"),
        ({"stage": 2, "offload_optimizer": {"device": "nvme"}}, "nvme"),
        ({"stage": 2}, None),
    ],
)
def test_offload_in_the_keys_of_old_and_new_deepspeed(tmp_path, zero, offload):
    facts = gather(settings(tmp_path / "ds.json", zero_optimization=zero)).facts
    assert facts.parallel.offload_optimizer == offload
    assert facts.unknown_keys == []


def test_deepspeed_other_ways_to_ask_for_a_precision(tmp_path):
    old = gather(settings(tmp_path / "a.json", zero_optimization=True, amp={"enabled": True})).facts
    assert (old.parallel.zero_stage, old.precision.compute) == (1, "float16")
    new = settings(
        tmp_path / "b.json", train_batch_size=8, torch_autocast={"enabled": True, "dtype": "bfloat16"},
        communication_data_type="fp32", data_types={"grad_accum_dtype": "bf16"},
        zero_optimization={"stage": 1, "reduce_bucket_size": 5e8, "use_multi_rank_bucket_allreduce": False},
    )  # fmt: skip
    facts = gather(new).facts
    assert facts.precision.compute == "bfloat16"
    assert (facts.parallel.communication_dtype, facts.parallel.grad_accum_dtype) == ("float32", "bfloat16")
    assert (facts.parallel.reduce_bucket_size, facts.parallel.multi_rank_bucket_allreduce) == (500_000_000, False)


@pytest.mark.parametrize(
    ("more", "card", "torch", "expected"),
    [("", "A100", "2.2.2", "bfloat16"), ("", "V100", "2.2.2", "float16"), ("", "V100", "2.6.0", "bfloat16"),
     ("fp16: false", "V100", "2.2.2", None), ("", None, "2.6.0", None), ("float16: true", "V100", "2.6.0", "float16")],
)  # fmt: skip
def test_axolotl_leaves_bf16_auto_to_the_card_and_to_torch(tmp_path, more, card, torch, expected):
    """From 2.3 on torch counts what it emulates."""
    path, needs = tmp_path / "c.yaml", tmp_path / "requirements.txt"
    path.write_text(f"base_model: x\nbf16: auto\nlearning_rate: 1e-5\n{more}\n")
    needs.write_text(f"torch=={torch}\n")
    precision = gather(path, gpu=card, requirements=needs).facts.precision
    assert (precision and precision.compute) == expected


LIGHTNING = """
    seed_everything: 1
    trainer: {accelerator: auto, devices: 1, precision: 16-mixed, max_steps: 90, gradient_clip_val: 0.5}
    model: {learning_rate: 1.0e-4, lora_r: 8, lora_alpha: 16}
    optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 2.0e-4}}
    data: {batch_size: 4}
"""


def test_lightning_mixed_precision_scales_and_true_precision_holds_the_weights(tmp_path):
    facts = facts_of(tmp_path, LIGHTNING)
    assert (facts.precision.compute, facts.precision.parameters, facts.precision.scaler) == (
        "float16",
        "float32",
        "dynamic",
    )
    optimizer = facts.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.clip, optimizer.batch) == ("adamw", 2e-4, 0.5, 4)
    assert (facts.adapter.kind, facts.adapter.rank, facts.adapter.alpha) == ("lora", 8, 16)
    assert facts.parallel.kind == "none"
    held = facts_of(tmp_path, LIGHTNING.replace("16-mixed", "16-true")).precision
    assert (held.parameters, held.scaler) == ("float16", "none")


def test_lightning_strategies(tmp_path):
    text = LIGHTNING.replace("devices: 1", "devices: 8, strategy: deepspeed_stage_2_offload")
    parallel = facts_of(tmp_path, text).parallel
    assert (parallel.kind, parallel.zero_stage) == ("deepspeed", 2)
    assert facts_of(tmp_path, LIGHTNING.replace("devices: 1", "devices: 8")).parallel is None
