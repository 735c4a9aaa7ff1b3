"""ReLoRA on lighthouse logs: every CYCLE steps the adapters are folded into the frozen base, re-initialised,
the moments of Adam are thrown away and the rate is warmed up once more.  The rank of the sum exceeds that of the parts."""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import logging
import warnings

logging.disable(logging.WARNING)
warnings.filterwarnings("ignore", category=FutureWarning)

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import LlamaConfig, LlamaForCausalLM

CFG = dict(cycle=12, cycles=4, rewarm=3, lr=1.2e-2, batch=8, rank=2, seq=16)
VOCAB = 50
torch.manual_seed(90)


def log_book(seed):
    """Endless lines of the keeper: wind, sea, lamp, in a fixed grammar with some noise. The noise grows at night."""
    g = torch.Generator().manual_seed(seed)
    hour = 0
    while True:
        night = hour % 8 >= 5
        start = torch.randint(VOCAB, (CFG["batch"], 1), generator=g)
        ids = (start + 3 * torch.arange(CFG["seq"])) % VOCAB
        flip = torch.rand(ids.shape, generator=g) < (0.25 if night else 0.02)
        ids = torch.where(flip, torch.randint(VOCAB, ids.shape, generator=g), ids)
        yield night, ids
        hour += 1


def lora_layers(model):
    return [m for m in model.modules() if isinstance(m, LoraLayer)]


@torch.no_grad()
def fold_and_restart(model, opt):
    drift = 0.0
    for layer in lora_layers(model):
        delta = layer.get_delta_weight("default")
        layer.get_base_layer().weight += delta
        drift += delta.norm().item()
        layer.reset_lora_parameters("default", True)  # A random, B zero
    opt.state.clear()
    return drift


def rate(i):
    """saw-tooth with a short ramp, one tooth a cycle"""
    k = i % CFG["cycle"]
    if k < CFG["rewarm"]:
        return (k + 1) / CFG["rewarm"]
    return 1.0 - 0.8 * (k - CFG["rewarm"]) / (CFG["cycle"] - CFG["rewarm"])


base = LlamaForCausalLM(LlamaConfig(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.15,
    pad_token_id=None, bos_token_id=None, eos_token_id=None))
model = get_peft_model(base, LoraConfig(r=CFG["rank"], lora_alpha=8, lora_dropout=0.0, task_type="CAUSAL_LM",
                                        target_modules=["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"]))
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))

opt = torch.optim.Adam(trainable, lr=CFG["lr"], betas=(0.9, 0.98))
book = log_book(17)
for i in range(CFG["cycle"] * CFG["cycles"]):
    if i and i % CFG["cycle"] == 0:
        drift = fold_and_restart(model, opt)
        print(f"-- folded, |delta| {drift:.4f}")
    for grp in opt.param_groups:
        grp["lr"] = CFG["lr"] * rate(i)
    night, ids = next(book)
    loss = model(input_ids=ids, labels=ids).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{i + 1:02d} {'night' if night else 'day  '} loss {loss.item():.5f} lr {opt.param_groups[0]['lr']:.5f}")

print("total", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.5f}")
