"""Auction prices of raw wool from the test-house report. Parts are looked up in registries by the names in CONFIG."""
import torch
import torch.nn as nn

REGISTRY = {"model": {}, "schedule": {}, "loss": {}}

CONFIG = {
    "seed": 1848,
    "model": {"name": "micron_mlp", "inputs": 7, "hidden": 24},
    "loss": {"name": "half_square"},
    "optimizer": {"name": "SGD", "momentum": 0.9},
    "schedule": {"name": "ramp_then_flat", "peak": 0.3, "ramp": 5},
    "data": {"lots": 40, "noise": 0.1},
    "clip": 20.0,
    "steps": 44,
}


def register(kind, name=None):
    def wrap(obj):
        REGISTRY[kind][name or obj.__name__] = obj
        return obj
    return wrap


def build(kind, spec):
    spec = dict(spec)
    return REGISTRY[kind][spec.pop("name")](**spec)


@register("model")
def micron_mlp(inputs, hidden):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, 1))


@register("loss")
def half_square():
    return lambda guess, price: 0.5 * (guess.squeeze(-1) - price).pow(2).mean()


@register("schedule")
def ramp_then_flat(peak, ramp):
    def lr(step):
        return peak * (step / ramp)
    return lr


@register("schedule")
def constant(peak):
    return lambda step: peak


class WoolAuction:
    def __init__(self, lots, noise, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.lots, self.noise = lots, noise
        self.value = torch.randn(7, generator=self.g)

    def __call__(self):
        report = torch.randn(self.lots, 7, generator=self.g)
        price = report @ self.value + 2.0 + self.noise * torch.randn(self.lots, generator=self.g)
        return report, price


def run(config):
    torch.manual_seed(config["seed"])
    torch.set_num_threads(1)
    model = build("model", config["model"])
    criterion = build("loss", config["loss"])
    schedule = build("schedule", config["schedule"])
    auction = WoolAuction(**config["data"], seed=config["seed"])
    opt_spec = dict(config["optimizer"])
    optimizer = getattr(torch.optim, opt_spec.pop("name"))(model.parameters(), lr=schedule(1), **opt_spec)

    for step in range(1, config["steps"] + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule(step)
        report, price = auction()
        loss = criterion(model(report), price)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        optimizer.step()
        print(f"step={step} lr={schedule(step):.4f} loss={loss.item():.6g}")
    print("weights", float(sum(p.detach().sum() for p in model.parameters())))


if __name__ == "__main__":
    run(CONFIG)
