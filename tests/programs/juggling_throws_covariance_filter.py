"""A juggler films his throws and trains a Kalman filter for the flight of the ball."""
import torch


class BallFilter(torch.nn.Module):
    """State: height, distance and their speeds; seen: height and distance in each picture."""

    def __init__(self, dt):
        super().__init__()
        self.dt = dt
        self.gravity = torch.nn.Parameter(torch.tensor(9.0))
        self.jitter = torch.nn.Parameter(torch.tensor([0.05, 0.05]))       # variance of the camera
        self.push = torch.nn.Parameter(torch.tensor(-3.0))                 # log variance of the air
        F = torch.eye(4)
        F[0, 2] = F[1, 3] = dt
        self.register_buffer("F", F)
        self.register_buffer("H", torch.eye(2, 4))

    def forward(self, track):
        x = torch.zeros(4)
        x[:2] = track[0]
        P = torch.diag(torch.tensor([0.05, 0.05, 8.0, 8.0]))
        R = torch.diag(self.jitter)
        Q = self.push.exp() * self.dt * torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0]))
        pull = torch.tensor([-0.5 * self.dt ** 2, 0.0, -self.dt, 0.0])
        cost = track.new_zeros(())
        for z in track[1:]:
            x = self.F @ x + self.gravity * pull
            P = self.F @ P @ self.F.T + Q
            S = self.H @ P @ self.H.T + R
            root = torch.linalg.cholesky(S)
            e = (z - self.H @ x).unsqueeze(1)
            white = torch.linalg.solve_triangular(root, e, upper=False)
            cost = cost + 0.5 * white.square().sum() + root.diagonal().log().sum()
            K = torch.cholesky_solve(self.H @ P, root).T
            x = x + (K @ e).squeeze(1)
            P = P - K @ S @ K.T
        return cost / (len(track) - 1)


def throws(n, dt, frames=16):
    gen = torch.Generator().manual_seed(3)
    t = torch.arange(frames) * dt
    for _ in range(n):
        up = 4.5 + 0.6 * torch.randn(1, generator=gen)
        across = 0.5 + 0.2 * torch.randn(1, generator=gen)
        flight = torch.stack([1.1 + up * t - 0.5 * 9.81 * t ** 2, across * t], dim=1)
        yield flight + 0.004 * torch.randn(flight.shape, generator=gen)


def run():
    torch.manual_seed(3)
    model = BallFilter(dt=1 / 25)
    opt = torch.optim.Adam([
        {"params": [model.gravity, model.push], "lr": 0.05},
        {"params": [model.jitter], "lr": 0.002},
    ])
    video = list(throws(12, 1 / 25))
    for step in range(1, 41):
        opt.zero_grad()
        batch = [video[(step * 3 + i) % len(video)] for i in range(3)]
        loss = torch.stack([model(track) for track in batch]).mean()
        loss.backward()
        opt.step()
        print(f"step {step:2d}: cost per picture {loss.item():.4f}, gravity {model.gravity.item():.3f}")
    print("squares of the parameters:", sum(float(p.detach().square().sum()) for p in model.parameters()))


run()
