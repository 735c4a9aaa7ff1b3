import torch


class Accelerated(torch.optim.Optimizer):
    """x+ = y - t grad(y), y+ = x+ + (k / (k + 3)) (x+ - x); the tensor that is optimised holds y."""

    def __init__(self, params, t):
        super().__init__(params, dict(t=t))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for y in group["params"]:
                if y.grad is None:
                    continue
                st = self.state[y]
                if not st:
                    st["k"] = 0
                    st["x"] = y.clone()
                st["k"] += 1
                x_new = y - group["t"] * y.grad
                y.copy_(x_new + st["k"] / (st["k"] + 3) * (x_new - st["x"]))
                st["x"] = x_new


class ParallelBeam:
    """Strip integrals over an n x n image; the gantry turns in `passes` interleaved rounds."""

    def __init__(self, n=20, angles=24, passes=3):
        r = (torch.arange(n) - (n - 1) / 2) / n
        yy, xx = torch.meshgrid(r, r, indexing="ij")
        views = []
        for start in range(passes):
            for th in torch.arange(start, angles, passes) * torch.pi / angles:
                s = xx * torch.cos(th) + yy * torch.sin(th)
                views.append(torch.stack([torch.relu(1 - (s - d).abs() * n).flatten() for d in r]))
        self.views = torch.cat(views)
        self.per_pass = len(self.views) // passes
        self.n = n

    def upto(self, rounds):
        return self.views[: rounds * self.per_pass]


def largest_eigenvalue(A, rounds, gen):
    v = torch.randn(A.shape[1], generator=gen)
    for _ in range(rounds):
        v = A.T @ (A @ v)
        v /= v.norm()
    return (A @ v).pow(2).sum().item()


class EmissionTomogram:
    def __init__(self, beam, ridge=1e-4):
        self.beam, self.ridge = beam, ridge
        self.image = torch.nn.Parameter(torch.zeros(beam.n, beam.n))

    def misfit(self, A, counts):
        residual = A @ self.image.reshape(-1) - counts[: len(A)]
        return 0.5 * residual.square().sum() + 0.5 * self.ridge * self.image.square().sum()

    def fit(self, counts, plan, gen):
        """plan: (rounds of the gantry that have come in, iterations until the next one)"""
        opt = Accelerated([self.image], t=1 / largest_eigenvalue(self.beam.upto(plan[0][0]), 12, gen))
        k = 0
        for rounds, iterations in plan:
            A = self.beam.upto(rounds)
            for _ in range(iterations):
                k += 1
                opt.zero_grad()
                loss = self.misfit(A, counts)
                loss.backward()
                opt.step()
                print(f"iteration {k} views {len(A)} misfit {loss.item():.5g}", flush=True)
        return self


def phantom(n, gen):
    r = torch.linspace(-1, 1, n)
    yy, xx = torch.meshgrid(r, r, indexing="ij")
    img = (xx ** 2 + 1.3 * yy ** 2 < 0.8).float()
    img += 1.5 * (((xx - 0.3) ** 2 + (yy + 0.2) ** 2) < 0.05).float()
    return img + 0.02 * torch.rand(n, n, generator=gen)


if __name__ == "__main__":
    gen = torch.Generator().manual_seed(21)
    beam = ParallelBeam()
    truth = phantom(beam.n, gen)
    counts = beam.views @ truth.reshape(-1) + 0.05 * torch.randn(len(beam.views), generator=gen)
    tomo = EmissionTomogram(beam).fit(counts, [(2, 50), (3, 50)], gen)
    print("final", tomo.image.detach().norm().item())
