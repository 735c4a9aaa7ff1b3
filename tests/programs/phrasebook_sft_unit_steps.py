import math
import torch
import torch.nn as nn
import torch.nn.functional as F

IGNORE = -100
MAX_LEN = 14
VOCAB = 40
SEP = 1


class UnitSteps(torch.optim.Optimizer):
    """Moves along the direction of the whole gradient by a fixed length (with some momentum)."""

    def __init__(self, params, length, momentum=0.5):
        super().__init__(params, dict(length=length, momentum=momentum))

    @torch.no_grad()
    def step(self):
        every = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        total = math.fsum(p.grad.pow(2).sum().item() for p in every) ** 0.5
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad.div(total)
                state = self.state[p]
                buf = state.setdefault("velocity", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(direction)
                p.sub_(buf, alpha=group["length"])


class Adapted(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.down.t() @ self.up.t())


class Speaker(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.words = nn.Embedding(VOCAB, d)
        self.places = nn.Embedding(MAX_LEN, d)
        self.qkv = nn.Linear(d, 3 * d)
        self.mix = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        h = self.words(ids) + self.places.weight[: ids.shape[1]]
        q, k, v = self.qkv(h).chunk(3, dim=-1)
        h = h + self.mix(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(h + self.ff(h))


def example(gen, asked):
    prompt = torch.randint(2, 20, (asked,), generator=gen).tolist() + [SEP]
    answer = [t + 20 for t in prompt[:4] if t != SEP]
    ids = (prompt + answer)[:MAX_LEN]
    labels = ([IGNORE] * len(prompt) + answer)[:MAX_LEN]
    pad = MAX_LEN - len(ids)
    return ids + [0] * pad, labels + [IGNORE] * pad


def collate(gen, step):
    # chapters of the book in their order; chapter 21 has the long set phrases of the notary
    lengths = [15, 13, 14, 16, 13, 14] if step == 21 else torch.randint(3, 10, (6,), generator=gen).tolist()
    rows = [example(gen, n) for n in lengths]
    return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


def main():
    torch.manual_seed(1234)
    gen = torch.Generator().manual_seed(4321)
    model = Speaker().requires_grad_(False)
    model.qkv, model.mix, model.head = Adapted(model.qkv), Adapted(model.mix), Adapted(model.head)
    learned = [p for p in model.parameters() if p.requires_grad]
    print("trainable", sum(p.numel() for p in learned))
    opt = UnitSteps(learned, length=0.15)
    for step in range(1, 36):
        ids, labels = collate(gen, step)
        logits = model(ids)
        summed = F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1),
                                 ignore_index=IGNORE, reduction="sum")
        loss = summed / (labels[:, 1:] != IGNORE).sum().clamp(min=1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"chapter {step} loss {loss.item():.4f}")
    print("norm of the adapters", f"{math.sqrt(sum(p.detach().pow(2).sum().item() for p in learned)):.5f}")


main()
