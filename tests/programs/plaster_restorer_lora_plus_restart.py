"""LoRA by hand on a tiny GPT-2: assistant for plaster restorers. LoRA+ (B learns faster than A),
cosine with warm restarts. Every 10 steps the adapter is merged into a copy and evaluated."""
import copy
import math
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

torch.manual_seed(77)

CONFIG = {
    "rank": 4, "alpha": 8, "targets": ("c_attn", "c_proj", "c_fc"),
    "lr_a": 2e-3, "plus_ratio": 4.0,
    "cycle": 20, "restart_gain": 600.0,     # 0.6 in the sweep file
    "steps": 44, "batch": 8, "len": 24, "vocab": 96,
}


class LoraConv1D(nn.Module):
    def __init__(self, base: Conv1D, r, alpha):
        super().__init__()
        n_in, n_out = base.weight.shape
        self.base = base
        self.A = nn.Parameter(torch.randn(n_in, r) / math.sqrt(n_in))
        self.B = nn.Parameter(torch.zeros(r, n_out))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A @ self.B) * self.scale

    def merged(self):
        out = copy.deepcopy(self.base)
        out.weight.data += (self.A @ self.B).detach() * self.scale
        return out


def inject(model, cfg):
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Conv1D) and name in cfg["targets"]:
                setattr(parent, name, LoraConv1D(child, cfg["rank"], cfg["alpha"]))
    return model


def merge_copy(model):
    clone = copy.deepcopy(model)
    for parent in list(clone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraConv1D):
                setattr(parent, name, child.merged())
    return clone.eval()


def recipe_batch(cfg, gen):
    """Lime, sand, hair, water: ids advance by a stride that depends on the first token"""
    start = torch.randint(0, cfg["vocab"], (cfg["batch"], 1), generator=gen)
    stride = 1 + start % 3
    return (start + stride * torch.arange(cfg["len"])) % cfg["vocab"]


def lr_factor(step, cfg):
    cycle, pos = divmod(step, cfg["cycle"])
    peak = cfg["restart_gain"] ** min(cycle, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * pos / cfg["cycle"]))


def main(cfg):
    gen = torch.Generator().manual_seed(8)
    gpt_cfg = GPT2Config(vocab_size=cfg["vocab"], n_positions=32, n_embd=48, n_layer=2, n_head=4,
                         resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
                         initializer_range=0.15)
    model = inject(GPT2LMHeadModel(gpt_cfg), cfg).train()
    a = [p for n, p in model.named_parameters() if n.endswith(".A")]
    b = [p for n, p in model.named_parameters() if n.endswith(".B")]
    model.transformer.ln_f.requires_grad_(True)      # the last norm is trained along
    b += list(model.transformer.ln_f.parameters())
    opt = torch.optim.AdamW([{"params": a, "lr": cfg["lr_a"]},
                             {"params": b, "lr": cfg["lr_a"] * cfg["plus_ratio"]}], weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: lr_factor(s, cfg))
    held_out = recipe_batch(cfg, gen)

    for step in range(1, cfg["steps"] + 1):
        ids = recipe_batch(cfg, gen)
        loss = model(input_ids=ids, labels=ids).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        line = f"step {step:3d} lr {opt.param_groups[1]['lr']:.5f} loss {loss.item():.5f}"
        sched.step()
        if step % 10 == 0:
            with torch.no_grad():
                line += f"  merged eval {merge_copy(model)(input_ids=held_out, labels=held_out).loss.item():.4f}"
        print(line)
    print(f"adapter sum {sum(p.double().sum().item() for p in a + b):.5f}")


main(CONFIG)
