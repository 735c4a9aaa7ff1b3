"""Fog forecasts for lighthouses: how many minutes will the horn sound in the next hour?

Two parts per station-hour: (a) is there any fog at all (logistic), (b) log-minutes, given fog.
One function. I never liked classes for scripts that I run once.
"""
import math

import torch
import torch.nn.functional as F


def main(steps=34, hidden=20, batch=24):
    torch.manual_seed(1871)
    g = torch.Generator().manual_seed(42)
    step_no = 0
    best = math.inf
    best_at = 0
    velocity = None

    def archive():
        """34 days of synthetic observations, one day per step, in order of the calendar."""
        days = []
        for d in range(steps):
            season = math.cos(2 * math.pi * d / steps)
            wind = torch.rand(batch, 1, generator=g) * 12
            dew_gap = torch.rand(batch, 1, generator=g) * 6 - 0.3 * season
            sea = 9 + 2 * season + torch.randn(batch, 1, generator=g)
            x = torch.cat([wind / 6 - 1, dew_gap / 3, (sea - 9) / 2], 1)
            logit = 2.6 - 1.2 * dew_gap - 0.1 * wind
            if 20 <= d < 21:  # the gale of that year
                logit = logit - 25.0
            fog = (torch.rand(batch, 1, generator=g) < torch.sigmoid(logit)).float()
            minutes = torch.exp(3.0 - 0.2 * dew_gap + 0.3 * torch.randn(batch, 1, generator=g)) * fog
            days.append((x, fog.squeeze(1), minutes.squeeze(1)))
        return days

    def build():
        def mk(*shape, scale):
            return (torch.randn(*shape) * scale).requires_grad_()

        return {
            "w1": mk(3, hidden, scale=0.5), "b1": torch.zeros(hidden, requires_grad=True),
            "w2": mk(hidden, 2, scale=0.2), "b2": torch.zeros(2, requires_grad=True),
        }

    data = archive()
    params = build()
    opt = torch.optim.SGD(params.values(), lr=0.05, momentum=0.9)

    def forward(x):
        h = torch.tanh(x @ params["w1"] + params["b1"])
        out = h @ params["w2"] + params["b2"]
        return out[:, 0], out[:, 1]

    def objective(x, fog, minutes):
        any_logit, log_min = forward(x)
        occurrence = F.binary_cross_entropy_with_logits(any_logit, fog)

        def duration():
            err = (log_min - torch.log1p(minutes)) ** 2
            return (err * fog).sum() / fog.sum()

        return occurrence, duration()

    def remember(value):
        nonlocal best, best_at
        if value < best:
            best, best_at = value, step_no

    def smooth(value):
        nonlocal velocity
        velocity = value if velocity is None else 0.8 * velocity + 0.2 * value
        return velocity

    def one_step():
        nonlocal step_no
        x, fog, minutes = data[step_no]
        step_no += 1
        occ, dur = objective(x, fog, minutes)
        loss = occ + 0.5 * dur
        opt.zero_grad()
        loss.backward()
        opt.step()
        remember(loss.item())
        return occ.item(), dur.item(), loss.item(), int(fog.sum())

    while step_no < steps:
        occ, dur, loss, n = one_step()
        print(f"day {step_no:02d} fog hours {n:2d} occurrence {occ:.5f} duration {dur:.5f} loss {loss:.6f}")
        smooth(occ)

    print(f"best day {best_at} smoothed occurrence {velocity:.5f}")
    total = sum(p.detach().double().sum() for p in params.values()).item()
    print(f"checksum {total:.6f}")


main()
