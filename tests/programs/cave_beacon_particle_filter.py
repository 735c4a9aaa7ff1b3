# A particle filter for a caver with a radio beacon receiver; motion and sensor noise are learned end to end.
import torch
from torch import nn

g = torch.Generator().manual_seed(404)
torch.manual_seed(404)
N, T, WALKS = 48, 7, 6
BEACONS = torch.tensor([[0.5, 0.5], [3.5, 0.7], [2.0, 3.6]])


def open_space(xy):
    """True where there is no rock: a square chamber with a pillar in it."""
    inside = ((xy > 0) & (xy < 4)).all(-1)
    pillar = (xy - 2.0).norm(dim=-1) < 0.5
    return inside & ~pillar


def simulate():
    pos = torch.rand(WALKS, 2, generator=g) * 1.2 + 0.4
    track, steps, strengths = [], [], []
    for _ in range(T):
        move = torch.randn(WALKS, 2, generator=g) * 0.25 + 0.12
        cand = pos + move
        ok = open_space(cand)[:, None]
        pos = torch.where(ok, cand, pos)
        track.append(pos)
        steps.append(torch.where(ok, move, torch.zeros_like(move)) + 0.15 * torch.randn(WALKS, 2, generator=g))
        d = (pos[:, None] - BEACONS).norm(dim=-1)
        strengths.append(-2.0 * torch.log(0.3 + d) + 0.15 * torch.randn(WALKS, 3, generator=g))
    return [torch.stack(x) for x in (track, steps, strengths)]


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_motion = nn.Parameter(torch.tensor(-0.7))
        self.log_sensor = nn.Parameter(torch.tensor(0.9))
        self.range_law = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, start, steps, strengths, mix=0.7):
        x = start[:, None] + 0.15 * torch.randn(WALKS, N, 2, generator=g)
        logw = torch.zeros(WALKS, N)
        guesses, surprise = [], 0.0
        for u, z in zip(steps, strengths):
            x = x + u[:, None] + self.log_motion.exp() * 0.3 * torch.randn(WALKS, N, 2, generator=g)
            dist = (x[:, :, None] - BEACONS).norm(dim=-1, keepdim=True)
            miss = (self.range_law(dist)[..., 0] - z[:, None]) * torch.exp(-self.log_sensor)
            like = -0.5 * miss.square().sum(-1) - 3 * self.log_sensor
            before = torch.logsumexp(logw, 1, keepdim=True)
            logw = logw + torch.where(open_space(x), like, torch.full_like(like, -torch.inf))
            evidence = torch.logsumexp(logw, 1, keepdim=True)
            surprise = surprise - evidence.mean() + before.mean()
            logw = logw - evidence
            w = logw.exp()
            guesses.append((w[..., None] * x).sum(1))
            with torch.no_grad():
                pick = torch.multinomial(mix * w + (1 - mix) / N, N, replacement=True, generator=g)
            chosen = logw.gather(1, pick)
            proposal = torch.log(mix * w.gather(1, pick) + (1 - mix) / N)
            x = x.gather(1, pick[..., None].expand(-1, -1, 2))
            logw = chosen - proposal
        self.in_rock = int(torch.isinf(logw).sum())
        return torch.stack(guesses), surprise / T


def fit(pf, iterations=30):
    groups = [{"params": pf.range_law.parameters(), "lr": 0.04}, {"params": [pf.log_motion, pf.log_sensor], "lr": 0.12}]
    opt = torch.optim.RAdam(groups)
    for it in range(1, iterations + 1):
        track, steps, strengths = simulate()
        path, surprise = pf(track[0] - steps[0], steps, strengths)
        error = (path - track).square().sum(-1).mean()
        loss = error + 0.2 * surprise
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("iteration", it, "| loss %.5f" % loss.item(), "| squared error %.5f" % error.item(), "| particles left in rock", pf.in_rock)


if __name__ == "__main__":
    model = Filter()
    fit(model)
    print("absolute weights add up to %.5f" % sum(p.abs().sum().item() for p in model.parameters()))
