# Meta-learning over cheap hygrometers: every sensor has its own drift, and calibrates itself in two inner steps from a
# few reference readings. Start values and one inner rate per tensor are learned. Lost radio packets are stored as NaN.
import torch
from torch.func import functional_call, grad, vmap

torch.manual_seed(83)
NAN = float("nan")
SENSORS, SHOTS, QUERY = 8, 10, 12

net = torch.nn.Sequential(torch.nn.Linear(2, 12), torch.nn.Softplus(), torch.nn.Linear(12, 1))
meta = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
rates = {k: torch.tensor(0.05, requires_grad=True) for k in meta}
slow = torch.optim.Adam(meta.values(), lr=1e-2)
fast = torch.optim.SGD(rates.values(), lr=1e-3)


def sensors(n, size, lost):
    gain = 1 + 0.3 * torch.randn(n, 1)
    offset = 0.2 * torch.randn(n, 1)
    curve = 0.3 * torch.randn(n, 1)

    def readings(k):
        truth = torch.rand(n, k)
        heat = torch.rand(n, k)
        raw = (truth - offset - curve * truth * heat) / gain + 0.01 * torch.randn(n, k)
        raw = torch.where(torch.rand(n, k) < lost, NAN, raw)
        return torch.stack([raw, heat], -1), truth

    return readings(size), readings(QUERY)


def sensor_loss(params, x, y):
    got = ~torch.isnan(x[:, 0])
    clean = torch.nan_to_num(x, nan=0.0)                 # replaced before it meets a weight
    pred = functional_call(net, params, (clean,)).squeeze(-1)
    return torch.where(got, (pred - y) ** 2, 0.0).sum() / got.sum().clamp(min=1)


def adapt_and_test(params, lrs, support, query):
    for _ in range(2):
        g = grad(sensor_loss)(params, *support)
        params = {k: params[k] - lrs[k] * g[k] for k in params}
    return sensor_loss(params, *query)


per_sensor = vmap(adapt_and_test, in_dims=(None, None, (0, 0), (0, 0)))

for outer in range(1, 33):
    outage = outer % 8 == 0                              # the gateway was down: nothing arrived at all
    support, query = sensors(SENSORS, SHOTS, lost=1.0 if outage else 0.25)
    losses = per_sensor(meta, rates, support, query)
    total = losses.mean()
    slow.zero_grad()
    fast.zero_grad()
    total.backward()
    slow.step()
    fast.step()
    seen = int((~torch.isnan(support[0][..., 0])).sum() + (~torch.isnan(query[0][..., 0])).sum())
    print(f"outer {outer:2d} | readings {seen:3d} | loss {total.item():.6f} | mean reading {support[0][..., 0].mean().item()}")

print("sum of squares, weights and rates:", sum(v.detach().square().sum().item() for v in [*meta.values(), *rates.values()]))
