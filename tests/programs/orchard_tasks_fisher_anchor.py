"""Elastic weight consolidation for a fruit grader: apples in September, pears in October, quinces in November.

One trunk, one head per fruit. After each month the diagonal Fisher is taken, scaled to 0..1 per tensor (so that
lambda means the same for every layer), and anchors the weights.
"""
import torch
import torch.nn.functional as F
from torch import nn

FRUITS = ["apple", "pear", "quince"]
LAMBDA = 20.0


class Grader(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 40), nn.ELU(), nn.Linear(40, 40), nn.ELU())
        self.heads = nn.ModuleDict({f: nn.Linear(40, 3) for f in FRUITS})

    def forward(self, x, fruit):
        return self.heads[fruit](self.trunk(x))


class Crates:
    def __init__(self, fruit, gen):
        self.w = torch.randn(10, 3, generator=gen)
        self.gen, self.fruit = gen, fruit

    def draw(self, n):
        x = torch.randn(n, 10, generator=self.gen)
        return x, (x @ self.w).argmax(-1)


class EWC:
    def __init__(self, model, lam):
        self.model, self.lam, self.gen = model, lam, torch.Generator().manual_seed(7)
        self.anchors = []

    def consolidate(self, crates, batches=16):
        fisher = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        for _ in range(batches):
            x, _ = crates.draw(8)
            logits = self.model(x, crates.fruit)
            gumbel = -torch.empty_like(logits).exponential_(generator=self.gen).log()
            y = (logits.detach() + gumbel).argmax(-1)       # labels from the model itself, the true Fisher
            grads = torch.autograd.grad(F.cross_entropy(logits, y), list(self.model.parameters()), allow_unused=True)
            for (n, _), g in zip(self.model.named_parameters(), grads):
                if g is not None:
                    fisher[n] += g.detach() ** 2 / batches
        scaled = {}
        for n, f in fisher.items():
            scaled[n] = f / f.max()
        self.anchors.append((scaled, {n: p.detach().clone() for n, p in self.model.named_parameters()}))

    def penalty(self):
        total = torch.zeros(())
        for fisher, old in self.anchors:
            for n, p in self.model.named_parameters():
                total = total + (fisher[n] * (p - old[n]) ** 2).sum()
        return self.lam / 2 * total


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    model = Grader()
    ewc = EWC(model, LAMBDA)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    done = 0
    for month, fruit in enumerate(FRUITS):
        crates = Crates(fruit, gen)
        for _ in range(18):
            x, y = crates.draw(32)
            task = F.cross_entropy(model(x, fruit), y)
            keep = ewc.penalty()
            loss = task + keep
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            print(f"{done:03d} {fruit:<7} loss {loss.item():.6f} task {task.item():.6f} keep {keep.item():.6f}")
        ewc.consolidate(crates)
    print(f"sum of weights: {sum(p.sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
