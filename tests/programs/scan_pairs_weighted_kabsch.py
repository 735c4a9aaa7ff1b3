"""Learned matching of two laser scans of a quarry face; the pose comes from a singular value decomposition."""
import torch
from torch import nn


def random_rotation(n, gen, most=0.6):
    axis = nn.functional.normalize(torch.randn(n, 3, generator=gen), dim=1)
    angle = most * torch.rand(n, 1, 1, generator=gen)
    zero = torch.zeros(n)
    skew = torch.stack([zero, -axis[:, 2], axis[:, 1], axis[:, 2], zero, -axis[:, 0], -axis[:, 1], axis[:, 0], zero], 1)
    skew = skew.view(n, 3, 3)
    return torch.eye(3) + angle.sin() * skew + (1 - angle.cos()) * skew @ skew


class Survey:
    def __init__(self, visits, pairs=6, beams=32):
        self.gen = torch.Generator().manual_seed(90)
        self.visits, self.pairs, self.beams = visits, pairs, beams

    def __iter__(self):
        for visit in range(self.visits):
            first = torch.randn(self.pairs, self.beams, 3, generator=self.gen) * torch.tensor([2.0, 1.0, 0.5])
            turn = random_rotation(self.pairs, self.gen)
            shift = torch.randn(self.pairs, 1, 3, generator=self.gen)
            second = first @ turn.mT + shift + 0.01 * torch.randn(first.shape, generator=self.gen)
            if visit == 18:                      # the shutter stayed closed: a beam without echo is stored as 0 0 0
                first[4] = 0.0
            yield first, second, turn, shift


class Pose(nn.Module):
    def forward(self, p, q):
        p_mid, q_mid = p.mean(1, keepdim=True), q.mean(1, keepdim=True)
        cross = (p - p_mid).mT @ (q - q_mid)
        u, s, vh = torch.linalg.svd(cross)
        sign = torch.ones(p.shape[0], 3)
        sign[:, 2] = torch.det(vh.mT @ u.mT).detach().sign()
        turn = vh.mT @ torch.diag_embed(sign) @ u.mT
        return turn, q_mid - p_mid @ turn.mT


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.describe = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
        self.temperature = nn.Parameter(torch.tensor(0.0))
        self.pose = Pose()

    @staticmethod
    def local(x):
        c = x - x.mean(1, keepdim=True)
        return torch.cat([c, c * c.abs()], 2)

    def forward(self, first, second):
        f, g = self.describe(self.local(first)), self.describe(self.local(second))
        match = torch.softmax(f @ g.mT * self.temperature.exp(), -1)
        return self.pose(first, match @ second)


torch.manual_seed(14)
net = Aligner()
optim = torch.optim.RMSprop(net.parameters(), lr=2e-3)
for visit, (first, second, turn, shift) in enumerate(Survey(32), start=1):
    try:
        guess, moved = net(first, second)
    except torch.linalg.LinAlgError:
        print(f"visit {visit:>2} no pose found")
        continue
    cost = (guess - turn).pow(2).sum((1, 2)).mean() + 0.1 * (moved - shift).pow(2).sum(2).mean()
    optim.zero_grad()
    cost.backward()
    nn.utils.clip_grad_value_(net.parameters(), 1.0)
    optim.step()
    print(f"visit {visit:>2} cost {cost.detach():.5f}")
print("size of the weights: %.5f" % sum(w.detach().norm().item() for w in net.parameters()))
