# Complex-valued demixing of two hydrophone channels (per frequency bin), after some notebooks of the bioacoustics group.
# Objective: minus log likelihood of a Laplacian source model, i.e. -2 log|det W| + sum |y|; negative is normal.
# Saved activations are parked in numpy on the "host" side because the real recordings do not fit.
import math

import torch
from torch import nn

torch.manual_seed(52)
torch.autograd.set_detect_anomaly(False)

BINS, CH, FRAMES = 17, 2, 48


class Parking:
    """saved_tensors_hooks that move real double storage out to numpy, and give it back when backward wants it."""

    def __init__(self):
        self.parked = self.fetched = 0

    def pack(self, t):
        if isinstance(t, nn.Parameter) or t.numel() < 64:
            return t
        self.parked += 1
        return ("np", t.detach().numpy().copy())

    def unpack(self, h):
        if isinstance(h, tuple):
            self.fetched += 1
            return torch.from_numpy(h[1])
        return h


class Demixer(nn.Module):
    def __init__(self):
        super().__init__()
        eye = torch.eye(CH, dtype=torch.cdouble).expand(BINS, CH, CH).clone()
        self.W = nn.Parameter(eye + 0.05 * torch.randn(BINS, CH, CH, dtype=torch.cdouble))
        self.log_gain = nn.Parameter(torch.zeros(BINS, dtype=torch.double))

    def forward(self, X):
        Y = torch.einsum("fij,fjt->fit", self.W, X)
        return Y * self.log_gain.exp()[:, None, None]


def recording(gen):
    src = torch.randn(BINS, CH, FRAMES, dtype=torch.cdouble, generator=gen)
    src = src * torch.rand(BINS, CH, FRAMES, dtype=torch.double, generator=gen).pow(3)  # sparse clicks
    A = torch.eye(CH, dtype=torch.cdouble) + 0.4 * torch.randn(BINS, CH, CH, dtype=torch.cdouble, generator=gen)
    return torch.einsum("fij,fjt->fit", A, src)


def objective(model, X):
    Y = model(X)
    fit = (Y.abs().square() + 1e-6).sqrt().sum((0, 1)).mean()
    logdet = torch.linalg.slogdet(model.W)[1].sum() + CH * model.log_gain.sum()
    return fit - 2 * logdet


def main():
    gen = torch.Generator().manual_seed(3)
    X = recording(gen)
    model = Demixer()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    park = Parking()

    # the phase of a bin is not identified: take the imaginary part of the diagonal out of the gradient
    def pin_phase(g):
        g = g.clone()
        d = torch.diagonal(g, dim1=-2, dim2=-1)
        d.copy_(torch.complex(d.real, torch.zeros_like(d.real)))
        return g

    model.W.register_hook(pin_phase)
    for it in range(1, 31):
        opt.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(park.pack, park.unpack):
            loss = objective(model, X)
        # curvature-ish penalty: gradient of the objective with respect to the gains, kept in the graph
        if it % 5 == 0:
            with torch.autograd.graph.save_on_cpu():
                (g,) = torch.autograd.grad(objective(model, X), model.log_gain, create_graph=True)
                pen = 1e-3 * g.square().sum()
            pen.backward(retain_graph=True)
            pen.backward()                         # yes, twice: weight two
        with torch.autograd.detect_anomaly(check_nan=True) if it == -1 else torch.enable_grad():
            loss.backward()
        opt.step()
        print(f"it {it:02d} nll {loss.item():+.6f} parked {park.parked} fetched {park.fetched}")
    print(f"mean |W| {model.W.abs().mean().item():.6f} of {math.prod(model.W.shape)}  sum {model.W.detach().abs().sum().item():.6f}")


if __name__ == "__main__":
    main()
