"""A fine-tune with TRL as people write it: nothing of finitune, and its defaults wherever no setting is given.

    python benchmarks/plain_trl.py MODEL DATA OUTPUT SETTINGS ADAPTER

SETTINGS and ADAPTER are JSON: arguments of SFTConfig (`load_in_4bit` beside them), and of LoraConfig or {}.
"""

from __future__ import annotations

import json
import sys

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

model, data, output, settings, adapter = *sys.argv[1:4], json.loads(sys.argv[4]), json.loads(sys.argv[5])
if settings.pop("load_in_4bit", False):
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    settings["model_init_kwargs"] = {"dtype": "float32", "quantization_config": four, "device_map": {"": "cpu"}}
trainer = SFTTrainer(
    model=model,
    train_dataset=load_dataset("json", data_files=data, split="train"),  # pyright: ignore[reportArgumentType]
    processing_class=AutoTokenizer.from_pretrained(model),
    args=SFTConfig(output_dir=output, use_cpu=True, bf16=False, report_to=[], save_strategy="no", **settings),
    peft_config=LoraConfig(task_type="CAUSAL_LM", **adapter) if adapter else None,
)
trainer.train()
trainer.save_model(output)
print("losses", json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
