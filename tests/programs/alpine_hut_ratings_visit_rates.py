"""Which mountain hut would this hiker like?  Factorisation of a stream of guest-book ratings."""
import torch

HIKERS, HUTS, RANK = 150, 40, 6


class RowSGD(torch.optim.Optimizer):
    """Plain SGD whose rate falls with the number of ratings a row has met so far.

    Guest books age: after every season the counts are halved, so that rows become mobile again.
    """

    def __init__(self, tables, lr, season):
        super().__init__(tables, dict(lr=lr, season=season))
        for group in self.param_groups:
            for table in group["params"]:
                self.state[table] = {"met": torch.ones(len(table), dtype=torch.long), "t": 0}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for table in group["params"]:
                state = self.state[table]
                touched = table.grad.abs().sum(1) > 0
                state["met"] += touched
                pace = group["lr"] / state["met"].float().sqrt()
                table -= pace[:, None] * table.grad
                state["t"] += 1
                if state["t"] % group["season"] == 0:
                    state["met"] //= 2


def guest_books(gen, batch):
    taste, charm = torch.randn(HIKERS, 3, generator=gen), torch.randn(HUTS, 3, generator=gen)
    kitchen = torch.randn(HUTS, generator=gen)
    who_comes = 1.0 / torch.arange(1, HIKERS + 1).float()
    while True:
        hiker = torch.multinomial(who_comes, batch, replacement=True, generator=gen)
        hut = torch.randint(HUTS, (batch,), generator=gen)
        stars = 3.2 + kitchen[hut] + 0.3 * (taste[hiker] * charm[hut]).sum(1) + 0.2 * torch.randn(batch, generator=gen)
        yield hiker, hut, stars.clamp(1, 5)


gen = torch.Generator().manual_seed(2024)
hiker_table = (0.3 * torch.randn(HIKERS, RANK, generator=gen)).requires_grad_()
hut_table = (0.3 * torch.randn(HUTS, RANK, generator=gen)).requires_grad_()
hiker_bias = torch.zeros(HIKERS, 1, requires_grad=True)
hut_bias = torch.full((HUTS, 1), 3.0, requires_grad=True)
tables = [hiker_table, hut_table, hiker_bias, hut_bias]
opt = RowSGD(tables, lr=4.0, season=14)

for step, (hiker, hut, stars) in zip(range(1, 36), guest_books(gen, batch=32)):
    guess = (hiker_table[hiker] * hut_table[hut]).sum(1) + (hiker_bias[hiker] + hut_bias[hut])[:, 0]
    loss = (guess - stars).pow(2).mean() + 1e-3 * (hiker_table[hiker].pow(2).mean() + hut_table[hut].pow(2).mean())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("ratings %4d   step %2d   squared error %.4f" % (32 * step, step, loss.item()))

print("all tables, squared and summed: %.6f" % sum(t.detach().double().pow(2).sum().item() for t in tables))
