"""What check says to type works when it is typed: shown, applied, checked again, and undone to the last byte."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import yaml
from tests.sources import worlds
from tests.sources.worlds import chat, jsonl

from finitune.cli.main import main
from finitune.preflight import check

LORA = {"use_peft": True, "lora_r": 8}
RUN = {"output_dir": "o", "per_device_train_batch_size": 4, "learning_rate": 2e-5}
AXOLOTL = {"base_model": "m", "micro_batch_size": 4, "learning_rate": 2e-4, "num_epochs": 1}
FACTORY = {"stage": "sft", "finetuning_type": "lora", "template": "default", "dataset": "d", "learning_rate": 1e-4}
LUDWIG = {
    "model_type": "llm", "base_model": "m", "input_features": [{"name": "a", "type": "text"}],
    "output_features": [{"name": "b", "type": "text"}], "adapter": {"type": "lora", "r": 8},
    "trainer": {"type": "finetune", "learning_rate": 1e-4, "batch_size": 4},
}  # fmt: skip
HALF = {"fp16": {"enabled": True}}
BRAIN = {"bf16": {"enabled": True}}
ZERO = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2, "overlap_comm": True}}
LAUNCH = "#!/bin/bash\n# fp16 and bf16 are named here too: --fp16\nGPUS=2\nLR=${LR:-2e-5}\n\n"
SCRIPT = LAUNCH + (
    "torchrun --nproc_per_node $GPUS train.py \\\n    --model_name_or_path m \\\n    --fp16 \\\n"
    '    --learning_rate "$LR" \\\n    --per_device_train_batch_size 4 \\\n    --output_dir out 2>&1 | tee log\n'
)
WORLDS = {
    "trainer-half": {"a.json": {**RUN, "fp16": True}},
    "trainer-brain": {"a.json": {**RUN, "bf16": True}},
    "trainer-pure-half": {"a.json": {**RUN, "fp16": True, "dtype": "float16"}},
    "trainer-pure-brain": {"a.yaml": {**RUN, "dtype": "bfloat16"}},
    "trainer-lora": {"a.yaml": {**RUN, **LORA, "lora_alpha": 4096, "learning_rate": 0.1, "bf16": True}},
    "trainer-quantised": {"a.json": {**RUN, **LORA, "load_in_4bit": True, "bnb_4bit_compute_dtype": "float16"}},
    "trainer-int8": {"a.json": {**RUN, **LORA, "load_in_8bit": True, "fp16": True}},
    "trainer-reentrant": {
        "a.json": {
            **RUN,
            **LORA,
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": True},
        }
    },
    "trainer-left": {"a.yaml": {**RUN, "fp16": True, "padding_side": "left", "attn_implementation": "eager"}},
    "trainer-side-of-the-tokenizer": {"a.yaml": {**RUN, "fp16": True, "attn_implementation": "eager"}},
    "trainer-evaluates-half": {"a.json": {**RUN, "bf16": True, "fp16_full_eval": True, "label_smoothing_factor": 0.1}},
    "trainer-no-clipping": {"a.json": {**RUN, "bf16": True, "max_grad_norm": 0, "learning_rate": 1e-3}},
    "trainer-groups": {"a.json": {**RUN, "bf16": True, "group_by_length": True}},
    "trainer-filter": {"a.json": {**RUN, "bf16": True, "logging_nan_inf_filter": True}},
    "trainer-packs": {"a.json": {**RUN, "bf16": True, "packing": True, "attn_implementation": "sdpa"}},
    "trainer-sdpa": {"a.json": {**RUN, "bf16": True, "attn_implementation": "sdpa"}},
    "trainer-holds-engine": {"a.json": {**RUN, "fp16": True, "deepspeed": {**ZERO, **HALF}}},
    "engine-half": {"a.json": {**ZERO, **HALF}},
    "engine-brain": {"a.json": {**ZERO, **BRAIN, "optimizer": {"type": "AdamW", "params": {"lr": 0.05, "eps": 1e-8}}}},
    "engine-static": {"a.json": {**ZERO, "fp16": {"enabled": True, "loss_scale": 65536}}},
    "engine-scale": {"a.json": {**ZERO, "fp16": {"enabled": True, "initial_scale_power": 4, "min_loss_scale": 16}}},
    "engine-sends-half": {"a.json": {**ZERO, **BRAIN, "communication_data_type": "fp16"}},
    "engine-accumulates": {
        "a.json": {**ZERO, **BRAIN, "gradient_accumulation_steps": 64, "data_types": {"grad_accum_dtype": "bf16"}}
    },
    "disagreeing": {
        "a.json": {**RUN, "bf16": True, "deepspeed": "ds.json"},
        "ds.json": {**ZERO, **HALF, "gradient_clipping": 5.0},
    },
    "script": {"a.sh": SCRIPT},
    "script-with-engine": {
        "a.sh": SCRIPT.replace(" 2>&1", " \\\n    --deepspeed ds.json 2>&1"),
        "ds.json": {**ZERO, **HALF},
    },
    "script-brain": {"a.sh": SCRIPT.replace("--fp16", "--bf16 True --max_grad_norm 0")},
    "script-of-accelerate": {
        "a.sh": "accelerate launch --mixed_precision fp16 t.py --learning_rate 1e-1 --output_dir o\n"
    },
    "accelerate": {
        "a.yaml": {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "mixed_precision": "fp16"}
    },
    "accelerate-brain": {"a.yaml": {"compute_environment": "LOCAL_MACHINE", "mixed_precision": "bf16"}},
    "axolotl": {
        "a.yaml": {**AXOLOTL, "fp16": True, "adapter": "qlora", "load_in_4bit": True, "lora_r": 8, "lora_alpha": 4096}
    },
    "axolotl-brain": {
        "a.yaml": {**AXOLOTL, "bf16": True, "learning_rate": 0.1, "sample_packing": True, "sdp_attention": True}
    },
    "axolotl-pure": {"a.yaml": {**AXOLOTL, "float16": True, "max_grad_norm": 0}},
    "factory": {"a.yaml": {**FACTORY, "fp16": True, "quantization_bit": 4, "lora_rank": 8, "lora_alpha": 4096}},
    "factory-brain": {
        "a.yaml": {**FACTORY, "pure_bf16": True, "learning_rate": 0.1, "flash_attn": "sdpa", "packing": True}
    },
    "factory-int8": {"a.yaml": {**FACTORY, "quantization_bit": 8, "fp16": True}},
    "ludwig": {"a.yaml": {**LUDWIG, "quantization": {"bits": 4}}},
    "ludwig-wild": {
        "a.yaml": {
            **LUDWIG,
            "quantization": {"bits": 4, "bnb_4bit_compute_dtype": "bfloat16"},
            "trainer": {
                "type": "finetune",
                "learning_rate": 0.5,
                "batch_size": 4,
                "gradient_clipping": {"clipglobalnorm": 0},
            },
        }
    },
}
VERSIONS = "deepspeed==0.12.5\ntransformers==4.40.0\ntrl==0.15.0\ntorch==2.5.0\nbitsandbytes==0.40.0\npeft==0.9.0\n"
WALKED = {
    "use-bfloat16", "use-float16", "disable-overlap-comm", "clip-gradients", "lower-learning-rate",
    "lower-adapter-scale", "set-compute-dtype", "float32-trainable-weights", "match-settings", "dynamic-loss-scale",
    "pad-right", "own-pad-token", "change-settings", "separate-documents", "keep-sixteen-bits",
}  # fmt: skip


OF_EACH_FORMAT = ("trainer-half", "trainer-lora", "trainer-int8", "engine-half", "disagreeing", "script",
                  "script-of-accelerate", "accelerate", "axolotl", "factory", "ludwig")  # fmt: skip
NAMES = [name if name in OF_EACH_FORMAT else pytest.param(name, marks=pytest.mark.slow) for name in WORLDS]


def world(folder: Path, name: str) -> list[str]:
    """The files of one world, a model whose tokenizer pads with its end on the left, and the arguments of check."""
    for file, content in WORLDS[name].items():
        path = folder / file
        if isinstance(content, str):
            path.write_text(content)
            path.chmod(0o755)
        elif path.suffix == ".json":
            path.write_text(json.dumps(content, indent=2))
        else:
            path.write_text("# kept\n" + yaml.safe_dump(content, sort_keys=False))
    weights = worlds.tensors()
    weights["model.embed_tokens.weight"][30] = np.zeros(worlds.HIDDEN, ml_dtypes.bfloat16)
    model = worlds.model(folder / "m", weights, model_type="qwen2")
    config = json.loads((model / "tokenizer_config.json").read_text())
    config |= {"pad_token": "</s>", "padding_side": "left", "unk_token": "<unk>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    rows = [
        chat() if i % 2 else {"messages": [*chat()["messages"], {"role": "user", "content": "</s>"}]} for i in range(6)
    ]
    jsonl(folder / "d.jsonl", rows)
    (folder / "r.txt").write_text(VERSIONS)
    return [next(iter(WORLDS[name]))]


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): f"{path.stat().st_mode} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files}


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_patch_works_and_leads_back(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configs = world(tmp_path, name)
    before = digests(tmp_path)
    walked: list[tuple[str, object]] = []
    for gpu in ("A100", "V100"):
        given = {"model": "m", "data": "d.jsonl", "gpu": gpu, "requirements": "r.txt"}
        cures = [f.remedy for f in check(*configs, **given).findings if f.remedy and f.remedy.patch]
        for cure in {cure.command: cure for cure in cures if cure.command}.values():
            if (cure.name, cure.patch) in walked:
                continue
            walked.append((cure.name, cure.patch))
            words = shlex.split(cure.command)
            assert words[:2] == ["finitune", "repair"]
            assert words[-1] == "--patch"
            change = said(words[1:], capsys)
            assert change.startswith("--- "), cure
            assert digests(tmp_path) == before
            result = json.loads(said([*words[1:-1], "--apply", "--format", "json"], capsys))
            assert result["diff"] == change
            assert digests(tmp_path) != before
            after = check(*configs, **given).findings
            assert not [f for f in after if f.remedy and (f.remedy.name, f.remedy.patch) == (cure.name, cure.patch)]
            for file in result["undo"]:
                said(["repair", "--undo", file], capsys)
            assert digests(tmp_path) == before


@pytest.mark.slow
def test_the_worlds_ask_for_most_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    asked: set[str] = set()
    for name in WORLDS:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        configs = world(tmp_path / name, name)
        for gpu in ("A100", "V100"):
            found = check(*configs, model="m", data="d.jsonl", gpu=gpu, requirements="r.txt").findings
            asked |= {f.remedy.name for f in found if f.remedy and f.remedy.patch and f.remedy.command}
    assert asked >= WALKED


@pytest.mark.parametrize("name", NAMES)
def test_all_patches_at_once_leave_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    configs = world(tmp_path, name)
    before = digests(tmp_path)
    words = [
        "repair",
        *(w for c in configs for w in ("--config", c)),
        "--model",
        "m",
        "--data",
        "d.jsonl",
        "--gpu",
        "A100",
    ]
    first = said([*words, "--patch"], capsys)
    result = json.loads(said([*words, "--apply", "--format", "json"], capsys))
    assert result["diff"] == first
    assert bool(first) == bool(result["undo"])
    for file in result["undo"]:
        said(["repair", "--undo", file], capsys)
    assert digests(tmp_path) == before


def test_commands_that_write_a_copy_work_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    world(tmp_path, "trainer-half")
    weights = worlds.tensors()
    weights["model.embed_tokens.weight"][6] = 0
    worlds.model(tmp_path / "m", weights)
    jsonl(tmp_path / "d.jsonl", [*[chat() for _ in range(5)], {"prompt": "what ", "completion": ""}])
    before = digests(tmp_path)
    for cause, option in (("untrained-token-embeddings", "model"), ("all-labels-ignored", "data")):
        given = {"model": "m", "data": "d.jsonl"}
        found = {f.cause: f.remedy for f in check("a.json", **given).findings}
        words = shlex.split(found[cause].command)
        result = json.loads(said([*words[1:], "--format", "json"], capsys))
        cured = {**given, option: result["output"]}
        assert cause not in {f.cause for f in check("a.json", **cured).findings}
        said(["repair", "--undo", result["output"]], capsys)
        assert digests(tmp_path) == before
