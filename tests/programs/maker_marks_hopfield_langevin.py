"""Associative memory of makers' marks on silver: a modern Hopfield energy, trained with Langevin chains.

    E(x) = |x|^2 / 2 - log sum_k exp(beta <x, m_k>) / beta

The memory has room for eight marks.  Rooms open one after the other: a room that is not in use has the
log-weight -inf, and gets the mark that is recalled worst when it opens."""
import torch

ROOMS, PIXELS = 8, 25
BETA = 2.0
OPEN_EVERY = 5


class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.marks = torch.nn.Parameter(torch.zeros(ROOMS, PIXELS))
        log_weight = torch.full((ROOMS,), float("-inf"))
        log_weight[0] = 0.0
        self.register_buffer("log_weight", log_weight)
        self.register_buffer("best", torch.full((ROOMS,), float("inf")))

    def energy(self, x):
        overlap = BETA * x @ self.marks.t() + self.log_weight
        return 0.5 * (x * x).sum(-1) - overlap.logsumexp(-1) / BETA

    def recall(self, x):
        return (BETA * x @ self.marks.t() + self.log_weight).softmax(-1) @ self.marks

    @torch.no_grad()
    def open_room(self, x):
        closed = torch.isinf(self.log_weight).nonzero().flatten()
        if len(closed) == 0:
            return False
        room = closed[0]
        self.marks[room] = x[self.energy(x).argmax()]
        self.log_weight[room] = 0.0
        return True


def langevin(memory, x, steps, eta, gen):
    for p in memory.parameters():
        p.requires_grad_(False)
    for _ in range(steps):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(memory.energy(x).sum(), x)
        x = x - eta * slope + (2 * eta / 40.0) ** 0.5 * torch.randn(x.shape, generator=gen)
    for p in memory.parameters():
        p.requires_grad_(True)
    return x.detach()


def rubbings(marks, n, gen):
    pick = torch.randint(0, len(marks), (n,), generator=gen)
    worn = torch.rand(n, PIXELS, generator=gen) < 0.1
    return torch.where(worn, torch.zeros(()), marks[pick]) + 0.1 * torch.randn(n, PIXELS, generator=gen)


def main():
    gen = torch.Generator().manual_seed(1725)
    marks = torch.randn(ROOMS, PIXELS, generator=gen).sign() * 0.6
    memory = Memory()
    with torch.no_grad():
        memory.marks[0] = 0.1 * torch.randn(PIXELS, generator=gen)
    opt = torch.optim.SGD(memory.parameters(), lr=0.4, momentum=0.3)
    chains = torch.randn(16, PIXELS, generator=gen)
    for step in range(1, 46):
        x = rubbings(marks, 24, gen)
        opened = step % OPEN_EVERY == 0 and memory.open_room(x)
        chains = langevin(memory, chains, 12, 0.1, gen)
        loss = memory.energy(x).mean() - memory.energy(chains).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            wrong = (memory.recall(x) - x).pow(2).mean(0).sum()
            in_use = ~torch.isinf(memory.log_weight)
            near = torch.cdist(memory.marks, x).amin(1)
            memory.best = torch.where(in_use, torch.minimum(memory.best, near), memory.best)
        print(f"{step:2d} contrast {loss.item():+.4f} recall error {wrong.item():.4f}",
              f"best {memory.best.min().item():.3f} worst {memory.best.max().item():.3f}",
              "(a room opens)" if opened else "")
    print("squared memory", round(memory.marks.pow(2).sum().item(), 4))


if __name__ == "__main__":
    main()
