"""Mixture-of-experts language model over the letters of crossword clues. bf16 autocast, checkpointed blocks."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HP = dict(vocab=30, dim=32, heads=4, experts=4, top=2, depth=2, context=24, batch=12,
          steps=44, anneal=26, lr=3e-3, balance=0.02, seed=19)


class Router(nn.Module):
    """Soft at first, and sharper from step to step until it decides for itself."""

    def __init__(self, dim, experts, top):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.top = top
        self.temperature = 1.0

    def forward(self, tokens):
        with torch.autocast("cpu", enabled=False):
            scores = self.gate(tokens.float()) / self.temperature
            probs = scores.softmax(-1)
        value, index = probs.topk(self.top, dim=-1)
        chosen = F.one_hot(index, probs.shape[-1]).sum(1).float()
        balance = probs.shape[-1] * (chosen.mean(0) * probs.mean(0)).sum()
        return value / (value.sum(-1, keepdim=True) + 1e-6), index, balance


class Experts(nn.Module):
    def __init__(self, dim, experts, top):
        super().__init__()
        self.router = Router(dim, experts, top)
        self.nets = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(experts)])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weight, index, balance = self.router(flat)
        out = torch.zeros_like(flat, dtype=torch.float32)
        for number, net in enumerate(self.nets):
            row, slot = torch.nonzero(index == number, as_tuple=True)
            if len(row):
                out = out.index_add(0, row, net(flat[row]).float() * weight[row, slot, None])
        return out.view_as(x), balance


class Block(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.heads = hp["heads"]
        self.n1, self.n2 = nn.LayerNorm(hp["dim"]), nn.LayerNorm(hp["dim"])
        self.qkv = nn.Linear(hp["dim"], 3 * hp["dim"])
        self.proj = nn.Linear(hp["dim"], hp["dim"])
        self.moe = Experts(hp["dim"], hp["experts"], hp["top"])

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        y, balance = self.moe(self.n2(x))
        return x + y, balance


class ClueModel(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.letters = nn.Embedding(hp["vocab"], hp["dim"])
        self.places = nn.Embedding(hp["context"], hp["dim"])
        self.blocks = nn.ModuleList([Block(hp) for _ in range(hp["depth"])])
        self.norm = nn.LayerNorm(hp["dim"])

    def forward(self, ids):
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        total = 0.0
        for block in self.blocks:
            x, balance = checkpoint(block, x, use_reentrant=False)
            total = total + balance
        return F.linear(self.norm(x), self.letters.weight), total


def clues(hp, gen):
    """A walk over the letters with a habit: the next is mostly one of three after it."""
    ids = torch.randint(hp["vocab"], (hp["batch"], 1), generator=gen)
    rows = [ids]
    for _ in range(hp["context"]):
        hop = torch.randint(1, 4, (hp["batch"], 1), generator=gen)
        rows.append((rows[-1] * 2 + hop) % hp["vocab"])
    return torch.cat(rows, 1)


def train(hp):
    torch.manual_seed(hp["seed"])
    gen = torch.Generator().manual_seed(hp["seed"] + 1)
    model = ClueModel(hp)
    opt = torch.optim.AdamW(model.parameters(), lr=hp["lr"], weight_decay=0.01)
    for step in range(hp["steps"]):
        for block in model.blocks:
            block.moe.router.temperature = max(1.0 - step / hp["anneal"], 0.0)
        seq = clues(hp, gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, balance = model(seq[:, :-1])
        nll = F.cross_entropy(logits.float().reshape(-1, hp["vocab"]), seq[:, 1:].reshape(-1))
        loss = nll + hp["balance"] * balance
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"[{step + 1:>2}] loss {loss.item():.6f} nll {nll.item():.6f}", flush=True)
    return model


if __name__ == "__main__":
    trained = train(HP)
    print(f"{sum(p.detach().abs().sum().item() for p in trained.parameters()):.5f}")
