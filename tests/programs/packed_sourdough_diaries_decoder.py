import math
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class DecoderConfig:
    vocab_size: int = 40
    hidden_size: int = 32
    num_layers: int = 2
    num_heads: int = 4


class PackedAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(config.hidden_size, config.hidden_size, bias=False))

    def forward(self, hidden_states, allowed):
        b, n, d = hidden_states.shape
        split = lambda x: x.view(b, n, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = (split(p(hidden_states)) for p in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~allowed, float("-inf"))
        probs = F.softmax(scores, dim=-1, dtype=torch.float32)
        probs = torch.where(allowed, probs, 0.0).to(v.dtype)
        return self.o_proj((probs @ v).transpose(1, 2).reshape(b, n, d))


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.self_attn = PackedAttention(config)
        self.post_norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.up = nn.Linear(config.hidden_size, 2 * config.hidden_size)
        self.down = nn.Linear(2 * config.hidden_size, config.hidden_size)

    def forward(self, x, allowed):
        x = x + self.self_attn(self.input_norm(x), allowed)
        return x + self.down(F.silu(self.up(self.post_norm(x))))


class DiaryForCausalLM(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(64, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for table in (self.embed_tokens, self.embed_positions):
            nn.init.normal_(table.weight, std=0.15)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, input_ids, position_ids, segment_ids):
        n = input_ids.shape[1]
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        real = (segment_ids >= 0)[:, :, None]
        allowed = (same & real & torch.ones(n, n, dtype=torch.bool).tril())[:, None]
        x = self.embed_tokens(input_ids) + self.embed_positions(position_ids)
        for layer in self.layers:
            x = layer(x, allowed)
        return self.lm_head(self.norm(x))


def diary_entry(rng):
    flour, rise = rng.randrange(2, 8), rng.randrange(8, 14)
    return [1, flour, flour] + [14 + (flour * i + rise) % 26 for i in range(rng.randrange(6, 20))] + [rise]


def pack(rng, rows, length):
    ids, pos, seg = (torch.zeros(rows, length, dtype=torch.long) for _ in range(3))
    seg -= 1
    labels = torch.full((rows, length), -100)
    for r in range(rows):
        start, number, entry = 0, 0, diary_entry(rng)
        while start + len(entry) <= length:
            stop = start + len(entry)
            ids[r, start:stop], pos[r, start:stop] = torch.tensor(entry), torch.arange(len(entry))
            seg[r, start:stop] = number
            labels[r, start:stop - 1] = torch.tensor(entry[1:])
            start, number, entry = stop, number + 1, diary_entry(rng)
    return ids, pos, seg, labels


if __name__ == "__main__":
    torch.manual_seed(11)
    rng = random.Random(11)
    model = DiaryForCausalLM(DecoderConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    for step in range(1, 31):
        micros = [pack(rng, 4, 64) for _ in range(2)]
        tokens = sum((m[3] != -100).sum() for m in micros)
        shown = 0.0
        for ids, pos, seg, labels in micros:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(ids, pos, seg)
            loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / tokens
            loss.backward()
            shown += loss.item()
        optimizer.step(), optimizer.zero_grad()
        print(f"step {step:2d}  loss {shown:.4f}  supervised tokens {tokens.item()}")
    print("sum of squared weights", round(sum(p.detach().pow(2).sum().item() for p in model.parameters()), 3))
