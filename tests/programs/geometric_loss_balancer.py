"""Street scenes: depth, surface normals and object count from one trunk. The tasks live on different scales, so each
loss is divided by a running geometric mean of itself before they are added up."""
from collections import OrderedDict
from typing import Dict, Iterator, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Scene(NamedTuple):
    image: Tensor
    depth: Tensor
    normals: Tensor
    count: Tensor
    has_count: Tensor


def scenes(batches: int, size: int, seed: int) -> Iterator[Scene]:
    """Objects were counted by hand in about half of the frames only."""
    gen = torch.Generator().manual_seed(seed)
    counted = torch.rand(batches, size, generator=gen) < 0.55
    counted[17] = False                          # this drive was never given to the annotators
    for b in range(batches):
        image = torch.rand(size, 3, 12, 12, generator=gen)
        depth = 20 + 60 * image.mean(dim=(1, 2, 3)) + torch.randn(size, generator=gen)
        normals = F.normalize(image.mean(dim=(2, 3)) - 0.4, dim=1)
        count = (image[:, 0] > 0.9).float().sum(dim=(1, 2))
        yield Scene(image, depth, normals, count, counted[b].float())


class GeometricBalancer:
    """weight_k = 1 / exp(running mean of log L_k)"""

    def __init__(self, tasks, decay=0.9):
        self.decay = decay
        self.log_mean: Dict[str, Tensor] = OrderedDict((t, None) for t in tasks)

    def update(self, losses: Dict[str, Tensor]) -> None:
        for name, value in losses.items():
            log_value = torch.log(value.detach())
            old = self.log_mean[name]
            self.log_mean[name] = log_value if old is None else self.decay * old + (1 - self.decay) * log_value

    def combine(self, losses: Dict[str, Tensor]) -> Tensor:
        self.update(losses)
        return sum(value * torch.exp(-self.log_mean[name]) for name, value in losses.items())


class StreetNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())
        self.heads = nn.ModuleDict({
            "depth": nn.Linear(9 * width, 1),
            "normals": nn.Linear(9 * width, 3),
            "count": nn.Linear(9 * width, 1),
        })

    def forward(self, image):
        h = self.trunk(image)
        return {k: head(h) for k, head in self.heads.items()}


def task_losses(out: Dict[str, Tensor], s: Scene) -> Dict[str, Tensor]:
    counted = (out["count"][:, 0] - s.count).abs() * s.has_count
    return {
        "depth": F.l1_loss(out["depth"][:, 0], s.depth),
        "normals": (1 - F.cosine_similarity(out["normals"], s.normals, dim=1)).mean(),
        "count": counted.sum() / s.has_count.sum().clamp(min=1),
    }


class Fitter:
    def __init__(self, net, balancer, lr):
        self.net, self.balancer = net, balancer
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    def one(self, scene: Scene):
        losses = task_losses(self.net(scene.image), scene)
        total = self.balancer.combine(losses)
        self.opt.zero_grad()
        total.backward()
        self.opt.step()
        return total.item(), {k: v.item() for k, v in losses.items()}

    def run(self, batches):
        for k, scene in enumerate(batches, 1):
            total, parts = self.one(scene)
            print(f"{k:2d} total {total:.5f} " + " ".join(f"{n} {v:.4f}" for n, v in parts.items()))


torch.manual_seed(61)
fitter = Fitter(StreetNet(), GeometricBalancer(["depth", "normals", "count"]), lr=3e-3)
fitter.run(scenes(28, 12, seed=62))
print("finite", int(all(p.isfinite().all() for p in fitter.net.parameters())))
