"""Reward model for a cooking assistant.

Bradley-Terry with annotator margins (Llama 2, eq. 2) on the last token's value, and a value head that scores every
token. Values along an answer should not jump, hence the roughness penalty.
"""
import argparse
import dataclasses
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

MARGIN = {"significantly": 1.0, "better": 2 / 3, "slightly": 1 / 3, "unsure": 0.0}


@dataclasses.dataclass
class RMConfig:
    vocab: int = 90
    dim: int = 32
    heads: int = 4
    layers: int = 2
    max_len: int = 24
    lr: float = 2e-3
    roughness: float = 0.05
    batch: int = 8
    steps: int = 40
    seed: int = 31


class CausalBackbone(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.dim), nn.Embedding(c.max_len, c.dim)
        layer = lambda: nn.TransformerEncoderLayer(c.dim, c.heads, 2 * c.dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(layer() for _ in range(c.layers))
        self.ln = nn.LayerNorm(c.dim)

    def forward(self, ids):
        n = ids.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.tok(ids) + self.pos(torch.arange(n))
        for b in self.blocks:
            h = b(h, src_mask=causal)
        return self.ln(h)


class RewardModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.backbone = CausalBackbone(c)
        self.v_head = nn.Linear(c.dim, 1, bias=False)
        nn.init.normal_(self.v_head.weight, std=1 / (c.dim + 1) ** 0.5)

    def forward(self, ids, last):
        values = self.v_head(self.backbone(ids)).squeeze(-1)
        return values, values.gather(1, last[:, None]).squeeze(1)


def roughness(values, answer_mask):
    """Length of the path of values over the answer's tokens."""
    jumps = (values[:, 1:] - values[:, :-1]) * answer_mask[:, 1:] * answer_mask[:, :-1]
    energy = jumps.square().sum(1)
    return energy.sqrt().mean()


class Comparisons:
    def __init__(self, c, n=400):
        rng = random.Random(c.seed)
        self.c, self.rows = c, []
        for i in range(n):
            dish = rng.randrange(8)
            prompt = [1] + [10 + dish * 5 + rng.randrange(5) for _ in range(5)] + [2]
            good = [50 + dish * 5 + rng.randrange(5) for _ in range(rng.randrange(4, 12))]
            bad = [50 + rng.randrange(40) for _ in range(rng.randrange(3, 12))]
            if i == 147:
                bad = [7]            # "Yes."
            self.rows.append((prompt, good, bad, rng.choice(list(MARGIN))))

    def encode(self, pairs):
        ids = torch.zeros(len(pairs), self.c.max_len, dtype=torch.long)
        mask = torch.zeros(len(pairs), self.c.max_len)
        last = torch.zeros(len(pairs), dtype=torch.long)
        for i, (p, a) in enumerate(pairs):
            s = (p + a)[:self.c.max_len]
            ids[i, :len(s)] = torch.tensor(s)
            mask[i, len(p):len(s)] = 1.0
            last[i] = len(s) - 1
        return ids, mask, last

    def batch(self, step):
        rows = self.rows[step * self.c.batch:(step + 1) * self.c.batch]
        margin = torch.tensor([MARGIN[r[3]] for r in rows])
        return self.encode([(r[0], r[1]) for r in rows]), self.encode([(r[0], r[2]) for r in rows]), margin


def bt_loss(model, chosen, rejected, margin, c):
    (ids_c, mask_c, last_c), (ids_r, mask_r, last_r) = chosen, rejected
    values, scores = model(torch.cat([ids_c, ids_r]), torch.cat([last_c, last_r]))
    r_c, r_r = scores.chunk(2)
    ranking = -F.logsigmoid(r_c - r_r - margin).mean()
    return ranking + c.roughness * roughness(values, torch.cat([mask_c, mask_r])), (r_c > r_r).float().mean()


@torch.no_grad()
def accuracy(model, data, c):
    accs = [bt_loss(model, *data.batch(s), c)[1].item() for s in range(40, 44)]
    return sum(accs) / len(accs)


def train(c):
    torch.manual_seed(c.seed)
    data, model = Comparisons(c), RewardModel(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=c.steps)
    for step in range(c.steps):
        loss, acc = bt_loss(model, *data.batch(step), c)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"{step + 1:>3} loss {loss.item():.6f} acc {acc.item():.3f}")
        if step % 10 == 9:
            print(f"    held-out accuracy {accuracy(model, data, c):.4f}")
    print("weights", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for f in dataclasses.fields(RMConfig):
        parser.add_argument(f"--{f.name}", type=f.type if callable(f.type) else type(f.default), default=f.default)
    train(RMConfig(**vars(parser.parse_args())))
