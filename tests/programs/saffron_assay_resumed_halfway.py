"""Grade of saffron from a laboratory assay. Trains in two shifts: the second starts from the files of the first.

    weights.pt   network and optimizer
    scaling.json mean and spread of each measured quantity, readable for the laboratory
"""
import json
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn

COLUMNS = {                      # typical value, spread
    "crocin_abs440": (212.0, 25.0),
    "picrocrocin_abs257": (88.0, 9.0),
    "safranal_abs330": (34.0, 6.0),
    "moisture_fraction": (0.095, 0.011),
    "ash_fraction": (0.061, 0.006),
    "lead_g_per_g": (4.1e-7, 1.3e-7),
    "pesticide_g_per_g": (1.9e-8, 0.8e-8),
}


class Scaling:
    def __init__(self, mean, spread):
        self.mean = torch.as_tensor(mean, dtype=torch.float32)
        self.spread = torch.as_tensor(spread, dtype=torch.float32)

    @classmethod
    def fit(cls, x):
        return cls(x.mean(0), x.std(0))

    def __call__(self, x):
        return (x - self.mean) / self.spread

    def save(self, path):
        table = {name: {"mean": round(m, 5), "spread": round(s, 5)}
                 for name, m, s in zip(COLUMNS, self.mean.tolist(), self.spread.tolist())}
        with open(path, "w") as f:
            json.dump(table, f, indent=1)

    @classmethod
    def load(cls, path):
        with open(path) as f:
            table = json.load(f)
        return cls([table[c]["mean"] for c in COLUMNS], [table[c]["spread"] for c in COLUMNS])


class Trays:
    """Endless mini-batches; knows where it is."""

    def __init__(self, n=900, seed=17):
        rng = np.random.default_rng(seed)
        u = rng.normal(size=(n, len(COLUMNS)))
        centre = np.array([c for c, _ in COLUMNS.values()])
        spread = np.array([s for _, s in COLUMNS.values()])
        self.x = torch.tensor(centre + spread * u, dtype=torch.float32)
        quality = 0.9 * u[:, 0] + 0.5 * u[:, 2] - 0.6 * u[:, 3] - 0.7 * np.maximum(u[:, 5], 0) + 0.3 * rng.normal(size=n)
        self.y = torch.tensor(np.digitize(quality, [-0.8, 0.0, 0.8]))
        self.position = 0

    def next(self, size=45):
        i = self.position % len(self.x)
        self.position += size
        return self.x[i:i + size], self.y[i:i + size]


def build():
    net = nn.Sequential(nn.Linear(len(COLUMNS), 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    return net, opt


def shift(net, opt, scaling, trays, first, last):
    criterion = nn.CrossEntropyLoss()
    for step in range(first, last + 1):
        x, y = trays.next()
        opt.zero_grad()
        out = net(scaling(x))
        loss = criterion(out, y)
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.8f} right {int((out.argmax(1) == y).sum())}", flush=True)


def main():
    torch.manual_seed(17)
    with tempfile.TemporaryDirectory() as folder:
        weights, table = os.path.join(folder, "weights.pt"), os.path.join(folder, "scaling.json")

        trays = Trays()
        net, opt = build()
        scaling = Scaling.fit(trays.x)
        shift(net, opt, scaling, trays, 1, 22)
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "position": trays.position,
                    "rng": torch.get_rng_state()}, weights)
        scaling.save(table)
        del net, opt, scaling, trays

        state = torch.load(weights)
        net, opt = build()
        net.load_state_dict(state["net"])
        opt.load_state_dict(state["opt"])
        torch.set_rng_state(state["rng"])
        trays = Trays()
        trays.position = state["position"]
        print("resumed at tray", trays.position, flush=True)
        shift(net, opt, Scaling.load(table), trays, 23, 44)
    print(sum(p.abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
