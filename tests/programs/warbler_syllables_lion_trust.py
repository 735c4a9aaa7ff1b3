# Language model over birdsong syllables (willow warbler, 40 syllable types), trained with a Lion that has LAMB's
# layerwise trust ratio.  After a general phase, low-rank adapters for the dialect of the valley join.
import torch
import torch.nn as nn
import torch.nn.functional as F

V, D, T, B = 40, 32, 24, 16
GENERAL, TOTAL = 20, 44


class TrustLion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99)):
        super().__init__(params, dict(lr=lr, betas=betas))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["m"] = torch.zeros_like(p)
                u = torch.sign(b1 * st["m"] + (1 - b1) * p.grad)
                w_norm, u_norm = p.norm(), u.norm()
                trust = w_norm / u_norm if w_norm > 0 else torch.ones(())
                p.sub_(group["lr"] * trust * u)
                st["m"].mul_(b2).add_(p.grad, alpha=1 - b2)


class Adapter(nn.Module):
    def __init__(self, d, r=4):
        super().__init__()
        self.down = nn.Parameter(torch.randn(d, r) / d ** 0.5)
        self.up = nn.Parameter(torch.zeros(r, d))

    def forward(self, x):
        return x @ self.down @ self.up


class SongModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.rnn = nn.GRU(D, D, batch_first=True)
        self.mix = nn.Linear(D, D)
        self.out = nn.Linear(D, V)
        self.dialect = None

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        y = self.mix(h)
        if self.dialect is not None:
            y = y + self.dialect(h)
        return self.out(torch.tanh(y))


def transition(g, sharp):
    return torch.softmax(sharp * torch.randn(V, V, generator=g), -1)


def songs(P, g):
    s = torch.randint(V, (B, 1), generator=g)
    for _ in range(T):
        s = torch.cat([s, torch.multinomial(P[s[:, -1]], 1, generator=g)], 1)
    return s


def run():
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(13)
    P_all = transition(g, 2.0)
    P_valley = 0.5 * P_all + 0.5 * transition(g, 3.0)
    model = SongModel()
    opt = TrustLion(model.parameters(), lr=0.01)
    for step in range(1, TOTAL + 1):
        if step == GENERAL + 1:
            for p in model.parameters():
                p.requires_grad_(False)
                p.grad = None
            model.dialect = Adapter(D)
            opt.add_param_group({"params": list(model.dialect.parameters()), "lr": 0.02})
        s = songs(P_all if step <= GENERAL else P_valley, g)
        loss = F.cross_entropy(model(s[:, :-1]).flatten(0, 1), s[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{'general' if step <= GENERAL else 'valley '} {step:2d} nats {loss.item():.6f}", flush=True)
    print(f"abs sum {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    run()
