"""Two questions about a product molecule, one trunk: which template made it, and was the yield good?

The gradients of the two tasks are merged by the purity of their signs (after GradDrop, Chen et al. 2020), in its
expectation: where both agree all of it passes, where they argue each passes as often as its sign prevails.
"""
import torch
from torch import nn

BITS, TEMPLATES = 40, 6


class Trunk(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.read = nn.Linear(BITS, width)
        self.mix = nn.Linear(width, width)

    def forward(self, fingerprint):
        return torch.tanh(self.mix(torch.tanh(self.read(fingerprint))))


def reactions(rng, n):
    frequency = torch.linspace(0.55, FLOOR, BITS)
    fp = (torch.rand(n, BITS, generator=rng) < frequency).float()
    template = (fp[:, :TEMPLATES] + 0.4 * torch.rand(n, TEMPLATES, generator=rng)).argmax(1)
    good = (fp[:, 6:14].sum(1) + torch.randn(n, generator=rng) > 4).float()
    return fp, template, good


def merge_by_sign(pairs):
    merged = []
    for a, b in pairs:
        purity = 0.5 * (1 + (a + b) / (a.abs() + b.abs()))
        up = a.clamp(min=0) + b.clamp(min=0)
        down = a.clamp(max=0) + b.clamp(max=0)
        merged.append(purity * up + (1 - purity) * down)
    return merged


def run(epochs=4, per_epoch=9, batch=32):
    torch.manual_seed(8)
    rng = torch.Generator().manual_seed(RNG)
    trunk, which, yields = Trunk(), nn.Linear(16, TEMPLATES), nn.Linear(16, 1)
    shared = list(trunk.parameters())
    heads = [*which.parameters(), *yields.parameters()]
    opt = torch.optim.Adam([{"params": shared}, {"params": heads, "lr": 2e-2}], lr=8e-3)
    step = 0
    for epoch in range(epochs):
        for _ in range(per_epoch):
            step += 1
            fp, template, good = reactions(rng, batch)
            z = trunk(fp)
            loss_template = nn.functional.cross_entropy(which(z), template)
            loss_yield = nn.functional.binary_cross_entropy_with_logits(yields(z)[:, 0], good)

            opt.zero_grad()
            from_template = torch.autograd.grad(loss_template, shared, retain_graph=True)
            from_yield = torch.autograd.grad(loss_yield, shared, retain_graph=True)
            (loss_template + loss_yield).backward(inputs=heads)
            for p, g in zip(shared, merge_by_sign(zip(from_template, from_yield))):
                p.grad = g
            opt.step()
            print(f"[{step:02d}] template {loss_template:.4f}  yield {loss_yield:.4f}")
        print(f"epoch {epoch} over")
    return [*shared, *heads]


FLOOR, RNG = 0.13, 0

if __name__ == "__main__":
    weights = run()
    print(f"all weights, sum of squares = {sum(w.detach().square().sum().item() for w in weights):.6f}")
