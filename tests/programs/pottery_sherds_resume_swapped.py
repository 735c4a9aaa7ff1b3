"""Sherd classifier that survives the eviction of our spot machine: state is saved, the process 'dies', it resumes."""
import dataclasses
import os
import tempfile

import torch
from torch import nn


@dataclasses.dataclass
class Shape:
    features: int = 9
    width: int = 24
    depth: int = 3
    wares: int = 6

    def dump(self):
        # a plain tuple, so that weights_only can read it
        return (self.features, self.depth, self.width, self.wares)

    @classmethod
    def parse(cls, values):
        return cls(*values)


class SherdNet(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        sizes = [shape.features] + [shape.width] * shape.depth
        self.trunk = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.out = nn.Linear(shape.width, shape.wares)

    def forward(self, x):
        for layer in self.trunk:
            x = torch.relu(layer(x))
        return self.out(x)


class Evicted(Exception):
    pass


class Job:
    def __init__(self, folder, total=40, save_every=6):
        self.path = os.path.join(folder, "sherds.pt")
        self.total, self.save_every = total, save_every
        self.done = 0
        self.centres = torch.randn(6, 9, generator=torch.Generator().manual_seed(1)) * 1.5
        self.build(Shape())

    def build(self, shape):
        self.net = SherdNet(shape)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)

    def save(self):
        torch.save({"shape": self.net.shape.dump(), "net": self.net.state_dict(),
                    "opt": self.opt.state_dict(), "done": self.done}, self.path)

    def resume(self):
        ckpt = torch.load(self.path, weights_only=True)
        self.build(Shape.parse(ckpt["shape"]))
        self.net.load_state_dict(ckpt["net"])
        self.opt.load_state_dict(ckpt["opt"])
        self.done = ckpt["done"]

    def batch(self):
        g = torch.Generator().manual_seed(1000 + self.done)
        ware = torch.randint(6, (32,), generator=g)
        return self.centres[ware] + torch.randn(32, 9, generator=g), ware

    def run(self, evict_after=None):
        while self.done < self.total:
            if self.done == evict_after:
                raise Evicted
            x, ware = self.batch()
            loss = nn.functional.cross_entropy(self.net(x), ware)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.done += 1
            print(f"{self.done:3d} {loss.item():.6f}", flush=True)
            if self.done % self.save_every == 0:
                self.save()


def main():
    torch.manual_seed(640)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        try:
            job.run(evict_after=18)
        except Evicted:
            print("evicted, starting again from the last file", flush=True)
            job.resume()
        job.run()
        print("sum", sum(p.double().sum().item() for p in job.net.parameters()))


if __name__ == "__main__":
    main()
