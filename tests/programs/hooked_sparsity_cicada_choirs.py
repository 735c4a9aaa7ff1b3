"""Sparse code of cicada spectra. The sparsity term is not in the model: forward hooks on layers that
carry `want_rate` put it on a ledger, and Module.__call__ is wrapped to empty the ledger first.
"""
import torch
from torch import nn


class Ledger(list):
    def settle(self):
        total = sum(self) if self else torch.zeros(())
        self.clear()
        return total


class LedgerModule(nn.Module):
    """Returns (output, sum of all that the hooks wrote)."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger()

    def __call__(self, *args, **kw):
        self.ledger.clear()
        out = super().__call__(*args, **kw)
        return out, self.ledger.settle()

    def watch(self):
        for layer in self.modules():
            rate = getattr(layer, "want_rate", None)
            if rate is not None:
                layer.register_forward_hook(self._rate_hook(rate))
        return self

    def _rate_hook(self, want):
        def hook(layer, inputs, code):
            share = code / code.sum()                        # share of each unit and clip in the choir
            rate = share.sum(0)
            self.ledger.append((rate * (rate.log() - want)).sum())
        return hook


class Gate(nn.Module):
    def __init__(self, want_rate):
        super().__init__()
        self.want_rate = want_rate

    def forward(self, x):
        return nn.functional.softplus(x, beta=4.0) * (x > -1.5)


class CicadaCode(LedgerModule):
    def __init__(self, bands=20, units=12):
        super().__init__()
        self.enc = nn.Linear(bands, units)
        self.gate = Gate(want_rate=-2.5)
        self.dec = nn.Linear(units, bands)
        nn.init.constant_(self.enc.bias, 0.2)

    def forward(self, spectrum):
        return self.dec(self.gate(self.enc(spectrum)))


def nights(n, gen):
    chirps = torch.rand(4, 20, generator=gen).pow(3)
    for night in range(n):
        who = torch.rand(18, 4, generator=gen)
        clip = who @ chirps + 0.02 * torch.rand(18, 20, generator=gen)
        if night == 16:
            clip = clip * 12.0         # the recorder stood on the trunk, gain at maximum
        yield clip


def main():
    torch.manual_seed(17)
    model = CicadaCode().watch()
    opt = torch.optim.Adamax(model.parameters(), lr=5e-3)
    for night, clip in enumerate(nights(40, torch.Generator().manual_seed(13)), 1):
        back, sparsity = model(clip)
        loss = (back - clip).square().mean() + 0.05 * sparsity
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"night {night:2d}  loss {loss.item():+.7f}")
    print(f"checksum {sum(p.double().sum().item() for p in model.parameters()):.8f}")


if __name__ == "__main__":
    main()
