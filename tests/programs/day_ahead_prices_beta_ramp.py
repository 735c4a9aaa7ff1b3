#!/usr/bin/env python
"""Day-ahead power prices for the bidding zones of a coupled market.

The second moment of Adam gets a longer memory while training goes on (beta2 ramp)."""
import math
import torch
from torch import nn
from torch.utils.data import IterableDataset, DataLoader, get_worker_info

CFG = dict(zones=9, hidden=40, lr=3e-3, beta2_from=0.9, beta2_to=1.0, ramp=22, steps=38, batch=48, seed=99)
device = "cuda" if torch.cuda.is_available() else "cpu"


class MarketStream(IterableDataset):
    """Zone 8 joins the coupling late, all others are there from the first day."""

    def __init__(self, cfg):
        self.cfg = cfg

    def __iter__(self):
        g = torch.Generator().manual_seed(self.cfg["seed"])
        level = torch.linspace(0.3, 0.9, self.cfg["zones"])
        for i in range(self.cfg["steps"] * self.cfg["batch"]):
            day = i // self.cfg["batch"]
            zone = int(torch.randint(0, 9 if day >= 27 else 8, (1,), generator=g))
            load, wind, gas = torch.rand(3, generator=g).tolist()
            hour = int(torch.randint(0, 24, (1,), generator=g))
            price = level[zone] + 0.6 * load - 0.5 * wind + 0.4 * gas + 0.2 * math.sin(hour * math.pi / 12)
            noise = 0.05 * torch.randn((), generator=g)
            yield zone, torch.tensor([load, wind, gas, math.sin(hour * math.pi / 12), math.cos(hour * math.pi / 12)]), price + noise


class PriceNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.zone = nn.Embedding(cfg["zones"], 6)
        self.mlp = nn.Sequential(nn.Linear(11, cfg["hidden"]), nn.Tanh(), nn.Linear(cfg["hidden"], 1))

    def forward(self, zone, x):
        return self.mlp(torch.cat([self.zone(zone), x], dim=-1)).squeeze(-1)


def beta2_at(step, cfg):
    share = min(1.0, step / cfg["ramp"])
    return (1 - share) * cfg["beta2_from"] + share * cfg["beta2_to"]


def train(cfg):
    torch.manual_seed(cfg["seed"])
    model = PriceNet(cfg).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"], betas=(0.9, cfg["beta2_from"]))
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    loader = DataLoader(MarketStream(cfg), batch_size=cfg["batch"], pin_memory=device == "cuda")
    for step, (zone, x, price) in enumerate(loader, start=1):
        zone = zone.to(device, non_blocking=True)
        x, price = x.to(device, non_blocking=True), price.to(device, non_blocking=True)
        for group in optimizer.param_groups:
            group["betas"] = (0.9, beta2_at(step, cfg))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            forecast = model(zone, x)
        loss = nn.functional.huber_loss(forecast.float(), price)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        print("step=%d beta2=%.4f huber=%.6f" % (step, optimizer.param_groups[0]["betas"][1], loss.item()))
    print("checksum of weights (abs): %.5f" % sum(p.abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    train(CFG)
