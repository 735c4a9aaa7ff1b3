"""A tiny model as litgpt keeps one: FOLDER of materials; with `broken`, one weight is not a number."""

import json
import shutil
import sys
from pathlib import Path

import torch
from litgpt import GPT, Config
from litgpt.utils import save_config

material, broken = Path(sys.argv[1]), sys.argv[2:] == ["broken"]
torch.manual_seed(1)
words = json.loads((material / "llama" / "tokenizer.json").read_text())["model"]["vocab"]
config = Config(
    name="tiny",
    n_layer=2,
    n_head=4,
    n_embd=32,
    intermediate_size=64,
    vocab_size=len(words),
    padded_vocab_size=len(words),
    block_size=128,
    norm_class_name="RMSNorm",
    mlp_class_name="LLaMAMLP",
    bias=False,
    rotary_percentage=1.0,
    parallel_residual=False,
)
model = GPT(config)
if broken:
    model.transformer.h[1].mlp.proj.weight.data[3, 5] = float("nan")
place = material / "litgpt"
place.mkdir(exist_ok=True)
torch.save(model.state_dict(), place / "lit_model.pth")
save_config(config, place)
for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
    shutil.copy(material / "llama" / name, place / name)
