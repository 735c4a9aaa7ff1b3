"""Mixture of experts on oar-force curves, top-2 routing, loader workers; outings that are too short are left out."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

EXPERTS, TOP, POINTS, OUTINGS = 6, 2, 16, 45


class Outings(IterableDataset):
    """One outing, one batch: force curves of its strokes and the speed of the boat. Each has a seed of its own."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, OUTINGS, info.num_workers):
            g = torch.Generator().manual_seed(1000 + number)
            strokes = 2 if number % 10 == 6 else int(torch.randint(20, 50, (1,), generator=g))
            seat = torch.randint(4, (strokes, 1), generator=g).float()
            t = torch.linspace(0, 3.1416, POINTS)
            force = torch.sin(t + 0.2 * seat) * (1 + 0.3 * torch.rand(strokes, 1, generator=g))
            speed = force.mean(1) * (1 + 0.5 * seat.squeeze(1)) + 0.05 * torch.randn(strokes, generator=g)
            yield number, force, speed


class Experts(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                                     for _ in range(EXPERTS))
        self.register_buffer("closed", torch.zeros(EXPERTS, dtype=torch.bool))
        self.scores = None

    def forward(self, h):
        logits = self.gate(h).masked_fill(self.closed, float("-inf"))
        best, index = logits.topk(TOP, dim=-1)
        keep = torch.full_like(logits, float("-inf")).scatter(-1, index, best)
        weight = keep.softmax(-1)
        out = torch.zeros_like(h)
        self.scores = []
        for e, expert in enumerate(self.experts):
            rows = (weight[:, e] > 0).nonzero().squeeze(-1)
            # mean confidence of the rows that came here; NaN where none did, only for the display
            self.scores.append(weight[rows, e].detach().mean().item())
            if len(rows):
                out = out.index_add(0, rows, weight[rows, e:e + 1] * expert(h[rows]))
        return h + out


class Crew(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp = nn.Linear(POINTS, width)
        self.moe = Experts(width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.moe(torch.tanh(self.inp(x)))).squeeze(-1)


class Hook:
    """Closes an expert from an outing on: a boat that is in repair."""

    def __init__(self, when):
        self.when = when

    def __call__(self, number, model):
        if number in self.when:
            model.moe.closed[self.when[number]] = True


class Trainer:
    def __init__(self, model, optimizer, hooks):
        self.model, self.optimizer, self.hooks, self.taken = model, optimizer, hooks, 0

    def fit(self, loader):
        for number, force, speed in loader:
            for hook in self.hooks:
                hook(number, self.model)
            if len(force) < 8:
                print(f"outing {number} left out", flush=True)
                continue
            loss = F.smooth_l1_loss(self.model(force), speed)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.taken += 1
            shown = " ".join(f"{s:.3f}" for s in self.model.moe.scores)
            print(f"outing {number} loss {loss.item():.7f} experts {shown}", flush=True)


def main():
    torch.manual_seed(6)
    model = Crew()
    trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3), [Hook({12: 1, 25: 4})])
    trainer.fit(DataLoader(Outings(), batch_size=None, num_workers=2))
    print(f"steps {trainer.taken}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
