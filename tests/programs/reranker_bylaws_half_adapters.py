"""Cross-encoder reranker for municipal bylaws.

Phase 1 trains the score head on the frozen encoder, phase 2 adds LoRA to the encoder, which is kept in float16
to spare memory, and trains head and adapters together.
"""
import argparse
import logging
import sys

import torch
from torch import nn
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

log = logging.getLogger("rerank")
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        h = self.n1(x)
        s = self.q_proj(h) @ self.k_proj(h).transpose(1, 2) / x.shape[-1] ** 0.5
        x = x + s.softmax(-1) @ self.v_proj(h)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Encoder(nn.Module):
    def __init__(self, vocab=60, d=32, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))

    def forward(self, ids):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x)
        return x.mean(1)


def batches(n, seed, lists=4, docs=5):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        query = torch.randint(0, 30, (lists, 1, 6), generator=g).expand(lists, docs, 6)
        doc = torch.randint(30, 60, (lists, docs, 10), generator=g)
        best = torch.randint(0, docs, (lists,), generator=g)
        doc[torch.arange(lists), best, :6] = query[:, 0] + 30       # the right bylaw speaks of the same things
        yield torch.cat([query, doc], -1), best


def listwise(encoder, head, ids, best):
    lists, docs, n = ids.shape
    pooled = encoder(ids.reshape(-1, n)).float()
    return F.cross_entropy(head(pooled).view(lists, docs), best)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--head-steps", type=int, default=12)
    ap.add_argument("--lora-steps", type=int, default=24)
    ap.add_argument("--lr", type=float, default=2e-4)
    a = ap.parse_args()
    torch.manual_seed(0)
    encoder = Encoder().half().requires_grad_(False)
    head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    step = 0
    opt = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for ids, best in batches(a.head_steps, 1):
        step += 1
        loss = listwise(encoder, head, ids, best)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.info("head %d %.7f", step, loss.item())

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    encoder = get_peft_model(encoder, config, autocast_adapter_dtype=False)
    adapters = [p for p in encoder.parameters() if p.requires_grad]
    both = torch.optim.AdamW([{"params": head.parameters(), "lr": a.lr},
                              {"params": adapters, "lr": a.lr, "weight_decay": 0.0}])
    for ids, best in batches(a.lora_steps, 2):
        step += 1
        loss = listwise(encoder, head, ids, best)
        both.zero_grad()
        loss.backward()
        both.step()
        log.info("lora %d %.7f", step, loss.item())
    total = sum(p.detach().float().abs().sum() for p in adapters) + sum(p.detach().abs().sum() for p in head.parameters())
    log.info("%.5f", total.item())


if __name__ == "__main__":
    main()
