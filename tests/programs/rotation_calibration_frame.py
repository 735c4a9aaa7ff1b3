"""Hand-eye calibration: a network corrects a coarse rotation by a small quaternion.  The head
has no bias, and a calibration frame (all features zero) therefore gives exactly the identity."""
import torch
from torch import nn

torch.manual_seed(14)
torch.set_num_threads(1)


def multiply(p, q):
    pw, px, py, pz = p.unbind(-1)
    qw, qx, qy, qz = q.unbind(-1)
    return torch.stack([pw * qw - px * qx - py * qy - pz * qz,
                        pw * qx + px * qw + py * qz - pz * qy,
                        pw * qy - px * qz + py * qw + pz * qx,
                        pw * qz + px * qy - py * qx + pz * qw], -1)


def unit(q):
    return q / q.pow(2).sum(-1, keepdim=True).sqrt()


class Corrector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32, bias=False), nn.Tanh(), nn.Linear(32, 3, bias=False))

    def forward(self, features):
        vector = self.body(features)
        return unit(torch.cat([torch.ones_like(vector[:, :1]), vector], -1))


class Objective:
    def __init__(self, weight_small=0.05):
        self.weight_small = weight_small

    def angle(self, estimate, reference):
        overlap = (estimate * reference).sum(-1).abs().clamp(max=1.0)
        return 2 * torch.acos(overlap)

    def __call__(self, estimate, reference):
        turn = self.angle(estimate, reference)
        stay_small = estimate[:, 1:].abs().sum(-1)
        return turn.square().mean() + self.weight_small * stay_small.mean()


def frames():
    g = torch.Generator().manual_seed(2)
    truth = torch.randn(12, 3, generator=g) * 0.1
    for number in range(1, 26):
        features = torch.randn(16, 12, generator=g)
        reference = unit(torch.cat([torch.ones(16, 1), features @ truth], -1))
        if number == 9:                                        # the target board stood still
            features[3] = 0.0
            reference[3] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        yield number, features, reference


def main():
    model, objective = Corrector(), Objective()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for number, features, reference in frames():
        loss = objective(model(features), reference)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"frame set {number:02d}: loss {loss.item():.5f}")
    print("weights finite", int(all(p.isfinite().all() for p in model.parameters())))


main()
