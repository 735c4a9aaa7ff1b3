"""Calibrate a cascade of rain barrels (roof -> upper barrel -> lower barrel -> garden) to a float gauge, by LBFGS.

Outflow of a barrel follows Torricelli: c * sqrt(h), but no more than there is in it. The fit walks along the
summer in windows of two days; each window warm-starts from the last.
"""
import torch

torch.set_default_dtype(torch.float64)
HOURS, WINDOWS, DT = 36, 26, 1.0
TRUE = torch.tensor([0.9, 0.22, 0.15])


def rain_of_summer(gen):
    """mm per hour; drizzle in spring, then (window 17 and on) a drought with one shower at the start of each window."""
    rain = 0.35 + 0.6 * torch.rand(WINDOWS, HOURS, generator=gen)
    rain[16:] = 0.0
    rain[16:, 0] = 1.5
    return rain


def outflow(c, h):
    return torch.minimum(c * torch.sqrt(h), h / DT)


def simulate(params, rain, start):
    roof, c_up, c_low = params
    up, low = start
    levels = []
    for r in rain:
        q_up = outflow(c_up, up)
        q_low = outflow(c_low, low)
        up = up + DT * (roof * r - q_up)
        low = low + DT * (q_up - q_low)
        levels.append(torch.stack([up, low]))
    return torch.stack(levels)


class BarrelFit:
    def __init__(self):
        self.log_params = torch.nn.Parameter(torch.log(torch.tensor([0.6, 0.3, 0.1])))
        self.opt = torch.optim.LBFGS([self.log_params], lr=0.5, max_iter=4, history_size=5)

    def fit_window(self, rain, gauge, start):
        first = []

        def closure():
            self.opt.zero_grad()
            error = simulate(self.log_params.exp(), rain, start) - gauge
            loss = error.square().mean()
            loss.backward()
            first.append(loss.item())
            return loss

        self.opt.step(closure)
        return first[0]


def main():
    gen = torch.Generator().manual_seed(21)
    summer = rain_of_summer(gen)
    fit = BarrelFit()
    for w, rain in enumerate(summer, start=1):
        start = (torch.tensor(1.0), torch.tensor(0.8))
        with torch.no_grad():
            gauge = simulate(TRUE, rain, start)
            gauge = gauge + 0.01 * torch.randn(gauge.shape, generator=gen)
        misfit = fit.fit_window(rain, gauge, start)
        print(f"window {w:2d} misfit before the fit {misfit:.9f}", flush=True)
    print("parameters", fit.log_params.detach().abs().sum().item())


if __name__ == "__main__":
    main()
