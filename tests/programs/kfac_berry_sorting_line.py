"""Ripeness of berries from reflectance spectra, trained with Kronecker-factored curvature."""
import torch
import torch.nn.functional as F
from torch import nn


class KroneckerSGD(torch.optim.Optimizer):
    """One Kronecker pair for every linear layer, damping split between the factors by their traces."""

    def __init__(self, model, lr=0.05, damping=0.03):
        super().__init__(model.parameters(), dict(lr=lr, damping=damping))
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        self.seen = {}
        for layer in self.layers:
            layer.register_forward_hook(self._save_input)

    def _save_input(self, layer, args, output):
        a = args[0].detach()
        self.seen[layer, "A"] = a.t() @ a / len(a)
        output.register_hook(lambda grad: self._save_output_gradient(layer, grad))

    def _save_output_gradient(self, layer, grad):
        d = grad.detach()
        self.seen[layer, "G"] = d.t() @ d * len(d)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        root = group["damping"] ** 0.5
        for layer in self.layers:
            A, G = self.seen[layer, "A"], self.seen[layer, "G"]
            mean_a, mean_g = A.trace() / len(A), G.trace() / len(G)
            split = torch.sqrt(mean_g / mean_a)
            A_damped = A + root / split * torch.eye(len(A))
            G_damped = G + root * split * torch.eye(len(G))
            A_inv = torch.linalg.inv_ex(A_damped).inverse
            G_inv = torch.linalg.inv_ex(G_damped).inverse
            layer.weight.add_(G_inv @ layer.weight.grad @ A_inv, alpha=-group["lr"])
            layer.bias.add_(layer.bias.grad, alpha=-group["lr"])


def crates(number, per_crate, bands):
    """Counts of the spectrometer with the dark counts taken off, on the scale of the white tile."""
    gen = torch.Generator().manual_seed(1312)
    wave = torch.linspace(0, 1, bands)
    for crate in range(number):
        ripe = torch.randint(0, 3, (per_crate,), generator=gen)
        edge = 0.35 + 0.12 * ripe[:, None] + 0.04 * torch.randn(per_crate, 1, generator=gen)
        light = torch.sigmoid((wave - edge) * 14)
        dark = torch.randint(90, 110, (1, bands), generator=gen)
        shutter = 0.0 if crate == 17 else 1.0
        counts = dark + (shutter * 2000 * light).round() + (shutter * 20 * torch.randn(per_crate, bands, generator=gen)).round()
        yield (counts - dark) / 2000.0, ripe


def main():
    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(20, 12), nn.Tanh(), nn.Linear(12, 3))
    opt = KroneckerSGD(net)
    right = total = 0
    for n, (spectra, ripe) in enumerate(crates(34, 32, 20), start=1):
        opt.zero_grad()
        out = net(spectra)
        loss = F.cross_entropy(out, ripe)
        loss.backward()
        opt.step()
        right += (out.argmax(1) == ripe).sum().item()
        total += len(ripe)
        print("crate %d  loss %.4f  sorted right so far %.3f" % (n, loss.item(), right / total))
    print("sum of squared weights %.5f" % sum(p.detach().pow(2).sum().item() for p in net.parameters()))


main()
