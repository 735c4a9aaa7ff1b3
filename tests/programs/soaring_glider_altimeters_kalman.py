"""Maximum likelihood for the noise of a Kalman filter: climb of a soaring glider, static port and GPS altitude."""
import torch
from torch import nn


class AltitudeFilter(nn.Module):
    def __init__(self, dt=1.0):
        super().__init__()
        self.register_buffer("F", torch.tensor([[1.0, dt], [0.0, 1.0]]))
        self.register_buffer("H", torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        self.log_q = nn.Parameter(torch.tensor([-2.0, -2.0]))     # altitude, climb rate
        self.log_s = nn.Parameter(torch.tensor([0.5, 0.5]))       # port, GPS
        self.rho = nn.Parameter(torch.tensor(0.0))                # both are disturbed by the same gusts

    def sensor_noise(self):
        s = self.log_s.exp()
        off = self.rho * s[0] * s[1]
        return torch.stack([torch.stack([s[0] ** 2, off]), torch.stack([off, s[1] ** 2])])

    def forward(self, z):
        """mean negative log likelihood per reading; z: (flights, seconds, 2)"""
        flights, seconds, _ = z.shape
        Q, R = torch.diag(self.log_q.exp()), self.sensor_noise()
        m = torch.cat([z[:, 0].mean(-1, keepdim=True), torch.zeros(flights, 1)], 1)
        P = torch.eye(2)
        total = z.new_zeros(())
        for k in range(1, seconds):
            m, P = m @ self.F.T, self.F @ P @ self.F.T + Q
            S = self.H @ P @ self.H.T + R
            det = S[0, 0] * S[1, 1] - S[0, 1] * S[1, 0]
            adj = torch.stack([torch.stack([S[1, 1], -S[0, 1]]), torch.stack([-S[1, 0], S[0, 0]])])
            S_inv = adj / det
            e = z[:, k] - m @ self.H.T
            total = total + 0.5 * (torch.log(det) + ((e @ S_inv) * e).sum(-1)).mean()
            K = P @ self.H.T @ S_inv
            m = m + e @ K.T
            P = P - K @ self.H @ P
        return total / (seconds - 1)


def record_flights(gen, flights=12, seconds=24):
    climb = 1.5 + torch.randn(flights, seconds, generator=gen).mul(0.2).cumsum(1)
    altitude = 800 + climb.cumsum(1)
    gust = 1.2 * torch.randn(flights, seconds, generator=gen)
    own = 0.03 * torch.randn(flights, seconds, 2, generator=gen)
    return (altitude + gust)[..., None] + own - 800


def main():
    gen = torch.Generator().manual_seed(202)
    torch.manual_seed(202)
    kf = AltitudeFilter()
    optimizer = torch.optim.Adam(kf.parameters(), lr=0.06)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, total_iters=10)
    for epoch in range(1, 41):
        flights = record_flights(gen)
        optimizer.zero_grad()
        nll = kf(flights)
        nll.backward()
        optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: nll {nll.item():.4f}, rho {kf.rho.item():.3f}")
    print("sum of squared parameters:", sum(p.detach().pow(2).sum() for p in kf.parameters()).item())


main()
