"""Owl call detector with a trainable PCEN front end (per-channel energy normalisation).
    PCEN = (E / (eps + M)^alpha + delta)^r - delta^r,  M a first-order IIR of E
alpha, delta and r are learned per band with their own group in the optimizer."""
import torch
from torch import nn

BANDS, FRAMES = 10, 30


class PCEN(nn.Module):
    def __init__(self, bands, s=0.08, alpha=0.95, delta=1.2, r=0.5, eps=1e-6):
        super().__init__()
        self.s, self.eps = s, eps
        self.alpha = nn.Parameter(torch.full((bands,), alpha))
        self.delta = nn.Parameter(torch.full((bands,), delta))
        self.r = nn.Parameter(torch.full((bands,), r))

    def smoother(self, energy):
        m = [energy[:, 0]]
        for t in range(1, energy.size(1)):
            m.append((1 - self.s) * m[-1] + self.s * energy[:, t])
        return torch.stack(m, 1)

    def forward(self, energy):
        gain = (self.eps + self.smoother(energy)).pow(-self.alpha)
        agc = energy * gain
        floor = self.delta.pow(self.r)
        return (agc + self.delta).pow(self.r) - floor


class OwlNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = PCEN(BANDS)
        self.rnn = nn.GRU(BANDS, 16, batch_first=True)
        self.call = nn.Linear(16, 1)

    def forward(self, energy):
        h, _ = self.rnn(self.front(energy))
        return self.call(h.mean(1)).squeeze(-1)


def nights(count, seed):
    """forest recordings: a hoot is two pulses in the low bands, rain is broad"""
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        y = (torch.rand(12, generator=g) < 0.5).float()
        e = 0.2 * torch.rand(12, FRAMES, BANDS, generator=g) ** 2 + 0.01
        for b in range(12):
            if y[b]:
                at = int(torch.randint(2, 18, (1,), generator=g))
                e[b, at:at + 3, 1:4] += 1.5
                e[b, at + 6:at + 9, 1:4] += 1.0
        yield e, y


def param_groups(model, lr):
    front = list(model.front.parameters())
    ids = {id(p) for p in front}
    rest = [p for p in model.parameters() if id(p) not in ids]
    # the front end "needs a much larger step, it hardly moved"
    return [{"params": rest, "lr": lr}, {"params": front, "lr": 25 * lr}]


def train():
    torch.manual_seed(55)
    torch.set_num_threads(1)
    model = OwlNet()
    opt = torch.optim.Adam(param_groups(model, 4e-3))
    bce = nn.BCEWithLogitsLoss()
    for night, (energy, y) in enumerate(nights(45, 3), start=1):
        logit = model(energy)
        loss = bce(logit, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc = ((logit > 0) == (y > 0)).float().mean()
        print(f"night {night:02d}  bce {loss.item():.6f}  acc {acc.item():.3f}")
    return model


if __name__ == "__main__":
    m = train()
    print("final", sum(p.detach().sum() for p in m.parameters()).item())
