"""Position of a funicular car from two encoders on the same axle.

A Kalman filter whose noise levels (and the damping of the car) are learned end to end by the likelihood of the
readings. The car may stand anywhere on the track when the log begins, hence the wide prior.
"""
import torch
from torch import nn

SEQ, BATCH, STEPS = 24, 12, 60
DT = 0.5
torch.manual_seed(8)


def simulate(gen, n):
    """True position of the car and what both encoders say."""
    pos = 900 * torch.rand(n, generator=gen)
    vel = 2.0 * torch.randn(n, generator=gen)
    seen = []
    for _ in range(SEQ):
        acc = 0.3 * torch.randn(n, generator=gen)
        pos = pos + DT * vel + 0.5 * DT * DT * acc
        vel = 0.97 * vel + DT * acc
        y = pos[:, None] + 0.02 * torch.randn(n, 2, generator=gen)
        seen.append(y)
    return torch.stack(seen, 1)


class AxleFilter(nn.Module):
    def __init__(self, spread=1200.0):
        super().__init__()
        self.log_q = nn.Parameter(torch.zeros(()))          # process noise
        self.log_r = nn.Parameter(torch.zeros(2))           # one level per encoder
        self.damping = nn.Parameter(torch.tensor(0.9))
        self.register_buffer("H", torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        self.register_buffer("P0", torch.diag(torch.tensor([spread ** 2, 25.0])))

    def transition(self):
        one, zero = torch.ones(()), torch.zeros(())
        F = torch.stack([torch.stack([one, one * DT]), torch.stack([zero, self.damping])])
        g = torch.tensor([[0.5 * DT * DT], [DT]])
        return F, self.log_q.exp() * (g @ g.T)

    def forward(self, y):
        F, Q = self.transition()
        R = torch.diag(self.log_r.exp())
        m = torch.tensor([450.0, 0.0]).expand(len(y), 2)
        P = self.P0
        nll = y.new_zeros(())
        for t in range(y.shape[1]):
            m = m @ F.T
            P = F @ P @ F.T + Q
            S = self.H @ P @ self.H.T + R
            L = torch.linalg.cholesky(S)
            e = y[:, t] - m @ self.H.T
            white = torch.linalg.solve_triangular(L, e.T, upper=False)
            nll = nll + 0.5 * white.square().sum(0).mean() + L.diagonal().log().sum()
            K = torch.cholesky_solve(self.H @ P, L).T
            m = m + e @ K.T
            A = torch.eye(2) - K @ self.H
            P = A @ P @ A.T + K @ R @ K.T
        return nll / y.shape[1]


def run():
    gen = torch.Generator().manual_seed(15)
    filt = AxleFilter()
    opt = torch.optim.Adam(filt.parameters(), lr=0.12)
    for step in range(1, STEPS + 1):
        nll = filt(simulate(gen, BATCH))
        opt.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(filt.parameters(), 10.0)
        opt.step()
        print(f"step {step} nll {nll.item():.5f} r {filt.log_r.exp().tolist()[0]:.6f}", flush=True)
    print(sum(p.detach().abs().sum() for p in filt.parameters()).item(), flush=True)


run()
