"""Andrade's creep law, strain = e0 + beta * t**n + rate * t, fitted to a lead pipe with L-BFGS. Old readings are trusted
most, so the fit starts from the last hours and takes in earlier readings, two at a time."""
import torch

torch.set_default_dtype(torch.float64)


class Andrade(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.e0 = torch.nn.Parameter(torch.tensor(0.2))
        self.beta = torch.nn.Parameter(torch.tensor(0.5))
        self.n = torch.nn.Parameter(torch.tensor(0.5))
        self.rate = torch.nn.Parameter(torch.tensor(0.02))

    def primary(self, t):
        return self.beta * torch.exp(self.n * torch.log(t))

    def forward(self, t):
        return self.e0 + self.primary(t) + self.rate * t


def readings(count=49, seed=17):
    g = torch.Generator().manual_seed(seed)
    hours = torch.arange(count) * 0.5               # the log starts when the load is put on
    strain = 0.35 + 0.8 * hours ** (1 / 3) + 0.045 * hours
    return hours, strain + 0.01 * torch.randn(count, generator=g)


def huber(r, d=0.05):
    a = r.abs()
    return torch.where(a < d, 0.5 * r * r, d * (a - 0.5 * d)).mean()


hours, strain = readings()
model = Andrade()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, history_size=6, line_search_fn="strong_wolfe")

print("step  first hour  readings  loss", flush=True)
for step in range(1, 36):
    first = max(0, len(hours) - 9 - 2 * step)
    t, y = hours[first:], strain[first:]

    def closure():
        optimizer.zero_grad()
        loss = huber(model(t) - y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print(f"{step:4d}  {t[0].item():10.2f}  {len(t):8d}  {loss.item():.10f}", flush=True)



@torch.no_grad()
def report(sections=((0.5, 4.0), (4.0, 12.0), (12.0, 24.5))):
    """How well the law holds early, in the middle and late; creep rate at the end of each section."""
    for a, b in sections:
        inside = (hours >= a) & (hours < b)
        rms = (model(hours[inside]) - strain[inside]).square().mean().sqrt()
        end = torch.tensor(b)
        slope = model.n * model.primary(end) / end + model.rate
        print(f"hours {a:4.1f} to {b:4.1f}  rms {rms.item():.6f}  rate {slope.item():.6f}")


report()
print("e0 beta n rate:", *(f"{p.item():.6f}" for p in model.parameters()))
print(f"{sum(p.abs().item() for p in model.parameters()):.8f}")
