"""Irradiance from all-sky camera features. Winter days, one batch per half hour, equal steps along the gradient."""
import math

import torch
from torch import nn


class UnitStepTrainer:
    def __init__(self, model, lr, power=4, halve_every=12):
        self.model = model
        self.power = power
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
        self.halving = torch.optim.lr_scheduler.StepLR(self.optimizer, halve_every, 0.5)
        self.history = []

    def weighted_error(self, batch):
        features, irradiance, weight = batch
        error = self.model(features).squeeze(-1) - irradiance
        return (weight * error.square()).mean()

    def rescale_gradients(self):
        grads = [p.grad for p in self.model.parameters()]
        total = sum((g ** self.power).sum() for g in grads)
        norm = total ** (1.0 / self.power)
        for g in grads:
            g.div_(norm)

    def training_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.weighted_error(batch)
        loss.backward()
        self.rescale_gradients()
        self.optimizer.step()
        self.halving.step()
        self.history.append(loss.item())
        return loss.item()


class Winter:
    """Sixteen half hours a day, from the late morning until the sun stands on the hills."""

    def __init__(self, days, cameras=20, seed=0):
        self.days, self.cameras = days, cameras
        self.rng = torch.Generator().manual_seed(seed)
        self.truth = torch.randn(9, generator=self.rng) / 3

    def __iter__(self):
        for day in range(self.days):
            for half_hour in range(16):
                elevation = math.radians(18.0 - 16.3 * (half_hour / 15) ** 2)
                features = torch.randn(self.cameras, 9, generator=self.rng)
                noise = 0.05 * torch.randn(self.cameras, generator=self.rng)
                irradiance = torch.tanh(features @ self.truth) + noise
                air_mass = 1.0 / math.sin(elevation)
                direct_beam = math.exp(1.0 - air_mass)
                yield day, half_hour, (features, irradiance, torch.full((self.cameras,), direct_beam))


def main():
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 1))
    trainer = UnitStepTrainer(net, lr=0.03)
    for day, half_hour, batch in Winter(days=2, seed=5):
        loss = trainer.training_step(batch)
        print("day %d, %02d:%02d  loss %.4e" % (day + 1, 9 + half_hour // 2, 30 * (half_hour % 2), loss))
    print("batches", len(trainer.history))
    print("length of all weights", math.sqrt(sum(p.detach().pow(2).sum().item() for p in net.parameters())))


main()
