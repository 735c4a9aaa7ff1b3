"""Local-trend filter for hives on scales. Noise levels and drift are learned through the filter itself."""
import torch
from torch import Tensor, nn

INF = float("inf")


def hive_log(days: int = 40, hives: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(40)
    flow = 0.15 * torch.sin(torch.arange(days) / 9.0) + 0.02 * torch.randn(days, hives, generator=g).T
    weight = flow.cumsum(1) + 0.05 * torch.randn(hives, days, generator=g)
    asleep = torch.rand(hives, days, generator=g) < 0.12          # radio of the scale is asleep
    asleep[2, 20:31] = True
    weight[asleep] = float("nan")
    return weight


class TrendFilter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_q_level = nn.Parameter(torch.tensor(-1.0))
        self.log_q_trend = nn.Parameter(torch.tensor(-2.0))
        self.log_r = nn.Parameter(torch.tensor(0.0))
        self.damping = nn.Parameter(torch.tensor(1.0))

    def forward(self, series: Tensor) -> Tensor:
        hives, days = series.shape
        level, trend = torch.zeros(hives), torch.zeros(hives)
        p11, p12, p22 = torch.ones(hives), torch.zeros(hives), torch.ones(hives)
        phi = torch.sigmoid(self.damping)
        total, count = series.new_zeros(()), 0
        for day in range(days):
            level, trend = level + trend, phi * trend
            p11, p12, p22 = (p11 + 2 * p12 + p22 + self.log_q_level.exp(), phi * (p12 + p22),
                             phi * phi * p22 + self.log_q_trend.exp())
            reading = series[:, day]
            awake = ~torch.isnan(reading)
            r = torch.where(awake, self.log_r.exp(), torch.tensor(INF))
            surprise = torch.where(awake, reading, level) - level
            s = p11 + r
            k1, k2 = p11 / s, p12 / s
            level, trend = level + k1 * surprise, trend + k2 * surprise
            p11, p12, p22 = (1 - k1) * p11, (1 - k1) * p12, p22 - k2 * p12
            score = 0.5 * (s.log() + surprise.square() / s)
            total = total + torch.where(awake, score, torch.zeros(())).sum()
            count += int(awake.sum())
        return total / count


class HalvingDescent(torch.optim.Optimizer):
    """Doubles the length after a success; halves it at most six times, otherwise stays where it is."""

    def __init__(self, params, length: float) -> None:
        super().__init__(params, {"length": length})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            here = closure(True)
        group = self.param_groups[0]
        home = [p.clone() for p in group["params"]]
        for _ in range(6):
            for p, h in zip(group["params"], home):
                p.copy_(h - group["length"] * p.grad)
            if closure(False) < here:
                group["length"] *= 2
                return here
            group["length"] /= 2
        for p, h in zip(group["params"], home):
            p.copy_(h)
        return here


def main() -> None:
    log = hive_log()
    model = TrendFilter()
    opt = HalvingDescent(model.parameters(), length=64.0)

    def closure(with_grad: bool) -> Tensor:
        nll = model(log)
        if with_grad:
            opt.zero_grad()
            nll.backward()
        return nll.detach()

    best = INF
    for i in range(1, 26):
        nll = opt.step(closure).item()
        best = min(best, nll)
        print(f"{i:>3}  nll {nll:+.5f}  best {best:+.5f}  length {opt.param_groups[0]['length']:g}")
    print("parameters, sum of squares:", sum(float(p.detach() ** 2) for p in model.parameters()))


main()
