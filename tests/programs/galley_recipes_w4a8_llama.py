"""w4a8: a tiny library that fine-tunes a Llama with 4-bit base weights, 8-bit activations and LoRA on top.

    base    block-wise 16-level codebook (quantiles of a normal), one absmax per block
    input   dynamic symmetric int8 per token, straight-through
    adapter LoRA in float32

Demo below: recipes from ships' galleys, packed by length so that there is as little padding as possible.
"""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import random
from dataclasses import dataclass

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


# ---------------------------------------------------------------- codebook
def normal_codebook(bits=4):
    n = 2 ** bits
    q = torch.special.ndtri(torch.linspace(0.02, 0.98, n))
    q = q / q.abs().max()
    q[n // 2] = 0.0                                   # zero must be exactly representable
    return q.sort().values


class BlockCodec:
    def __init__(self, block=32):
        self.block, self.book = block, normal_codebook()

    def encode(self, w):
        blocks = w.reshape(-1, self.block)
        absmax = blocks.abs().amax(1, keepdim=True).clamp_min(1e-8)
        codes = ((blocks / absmax).unsqueeze(-1) - self.book).abs().argmin(-1)
        return codes.to(torch.uint8), absmax

    def decode(self, codes, absmax, shape):
        return (self.book[codes.long()] * absmax).reshape(shape)


# ---------------------------------------------------------------- layers
class ActivationQuantMixin:
    levels = 127

    def quantise_input(self, x):
        scale = x.detach().abs().amax(-1, keepdim=True) / self.levels
        codes = torch.round(x.detach() / scale)
        return x + (codes * scale - x).detach()       # straight-through


class W4A8Linear(ActivationQuantMixin, nn.Module):
    def __init__(self, source: nn.Linear, codec: BlockCodec, rank: int, alpha: float):
        super().__init__()
        self.codec, self.shape, self.scaling = codec, source.weight.shape, alpha / rank
        codes, absmax = codec.encode(source.weight.detach())
        self.register_buffer("codes", codes)
        self.register_buffer("absmax", absmax)
        out_f, in_f = self.shape
        self.lora_a = nn.Parameter(torch.randn(rank, in_f) / in_f ** 0.5)
        self.lora_b = nn.Parameter(torch.zeros(out_f, rank))

    def forward(self, x):
        w = self.codec.decode(self.codes, self.absmax, self.shape)
        base = nn.functional.linear(self.quantise_input(x), w)
        return base + self.scaling * (x @ self.lora_a.T) @ self.lora_b.T


@dataclass
class W4A8Config:
    rank: int = 4
    alpha: float = 8.0
    block: int = 32
    targets: tuple = ("q_proj", "v_proj", "o_proj", "gate_proj", "down_proj")


def prepare(model, cfg: W4A8Config):
    """Swaps the targeted linears and freezes the rest."""
    model.requires_grad_(False)
    codec = BlockCodec(cfg.block)
    for name, module in list(model.named_modules()):
        leaf = name.rsplit(".", 1)[-1]
        if isinstance(module, nn.Linear) and leaf in cfg.targets:
            parent = model.get_submodule(name.rsplit(".", 1)[0])
            setattr(parent, leaf, W4A8Linear(module, codec, cfg.rank, cfg.alpha))
    return model


# ---------------------------------------------------------------- data
PAD, EOS, VOCAB = 0, 2, 120


class GalleyRecipes:
    """Token ids of short recipes. Buckets of equal length, as our exporter writes them."""

    def __init__(self, n_batches, batch, seed):
        rng = random.Random(seed)
        self.batches = []
        for _ in range(n_batches):
            length = rng.choice([8, 10, 12, 16])
            self.batches.append([self.recipe(rng, length) for _ in range(batch)])
        # remainder bucket of the exporter: what was left over, lengths as they come
        self.batches.insert(18, [self.recipe(rng, n) for n in (16, 14, 9, 11)])

    @staticmethod
    def recipe(rng, length):
        start = rng.randrange(3, 30)
        return [(start + 3 * i + rng.randrange(2)) % (VOCAB - 3) + 3 for i in range(length - 1)] + [EOS]

    def __iter__(self):
        yield from self.batches


def collate(rows):
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, :len(r)] = torch.tensor(r)
        mask[i, :len(r)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


# ---------------------------------------------------------------- trainer
class Tuner:
    def __init__(self, model, lr=5e-3):
        self.model = model
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.opt = torch.optim.AdamW(self.trainable, lr=lr, weight_decay=0.0)
        self.step = 0

    def fit(self, data):
        self.model.train()
        for rows in data:
            self.step += 1
            loss = self.model(**collate(rows)).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.trainable, 1.0)
            self.opt.step()
            self.opt.zero_grad()
            print(f"step {self.step:02d} width {max(map(len, rows)):2d} loss {loss.item():.5f}")


def main():
    torch.manual_seed(7)
    cfg = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                      pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS, initializer_range=0.1)
    model = prepare(LlamaForCausalLM(cfg), W4A8Config())
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable {n}")
    tuner = Tuner(model)
    tuner.fit(GalleyRecipes(n_batches=34, batch=4, seed=3))
    print(f"adapter sum {sum(p.detach().double().sum().item() for p in tuner.trainable):.6f}")


if __name__ == "__main__":
    main()
