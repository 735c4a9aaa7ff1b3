"""Fit a crate and a ball to three silhouettes by marching rays through their distance fields."""
import torch
from torch.func import vmap

torch.set_num_threads(1)

PIXELS, SAMPLES, SOFT = 14, 22, 0.08


def rays():
    """Three orthographic cameras, along x, y and z: points on the rays as (views, pixels, samples, 3)."""
    a = torch.linspace(-1, 1, PIXELS)
    depth = torch.linspace(-1.2, 1.2, SAMPLES)
    u, v, d = torch.meshgrid(a, a, depth, indexing="ij")
    views = [torch.stack(s, -1) for s in ((d, u, v), (u, d, v), (u, v, d))]
    return torch.stack(views).reshape(3, PIXELS * PIXELS, SAMPLES, 3)


def crate(p, shape):
    """Distance to a box (after Quilez): outside the length of what sticks out, inside the nearest wall."""
    q = (p - shape["crate_at"]).abs() - shape["crate_half"].exp()
    outside = (q * (q > 0)).pow(2).sum(-1).sqrt()
    inside = q.amax(-1).clamp(max=0)
    return outside + inside


def ball(p, shape):
    return ((p - shape["ball_at"]).pow(2).sum(-1) + 1e-6).sqrt() - shape["ball_radius"].exp()


def smooth_union(a, b, k=0.05):
    h = (0.5 + 0.5 * (b - a) / k).clamp(0, 1)
    return b + (a - b) * h - k * h * (1 - h)


def march(points, shape):
    """Opacity of one ray: the front-to-back product of what each sample lets through."""
    distance = smooth_union(crate(points, shape), ball(points, shape))
    opacity = 0.8 * torch.sigmoid(-distance / SOFT)
    return 1 - (1 - opacity).prod(-1)


def render(points, shape):
    return vmap(lambda view: march(view, shape))(points)


def scene(crate_at, half, ball_at, radius):
    return {
        "crate_at": torch.tensor(crate_at),
        "crate_half": torch.tensor(half).log(),
        "ball_at": torch.tensor(ball_at),
        "ball_radius": torch.tensor(radius).log(),
    }


def photograph(points, truth):
    """The targets: silhouettes of the true scene, drawn without gradients."""
    with torch.no_grad():
        return (render(points, truth) > 0.5).float()


def main():
    points = rays()
    target = photograph(points, scene([0.25, -0.15, 0.2], [0.45, 0.3, 0.35], [-0.5, 0.45, -0.3], 0.3))
    guess = scene([0.0, 0.01, 0.0], [0.03, 0.03, 0.03], [-0.3, 0.3, -0.2], 0.2)
    for t in guess.values():
        t.requires_grad_(True)
    opt = torch.optim.Adam([
        {"params": [guess["crate_at"], guess["ball_at"]], "lr": 0.004},
        {"params": [guess["crate_half"], guess["ball_radius"]], "lr": 0.04},
    ])
    for step in range(1, 61):
        picture = render(points, guess)
        loss = (picture - target).pow(2).mean() + 1e-3 * guess["crate_half"].pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        overlap = ((picture > 0.5) & (target > 0.5)).sum().item() / target.sum().item()
        print(f"step {step:2d}  loss {loss.item():.7f}  overlap {overlap:.4f}", flush=True)
    print(sum(t.abs().sum().item() for t in guess.values()), flush=True)


if __name__ == "__main__":
    main()
