"""
Mean teacher for fruit ripeness, 8 labelled and many unlabelled crates.
The teacher is the exponential average of the student; its decay is ramped up while training
so that late teachers forget less.
"""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class MeanTeacher:

    def __init__(self, seed=0, decay=0.90, ramp=0.008, weight=0.5):
        torch.manual_seed(seed)
        self.decay0, self.ramp, self.weight = decay, ramp, weight
        self.student = self.build()
        self.teacher = copy.deepcopy(self.student)
        for p in self.teacher.parameters():
            p.requires_grad = False
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=2e-3)
        self.iteration = 0

    @staticmethod
    def build():
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
                             nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))

    def make_crates(self, n):
        ripeness = torch.randint(0, 3, (n,))
        hue = torch.tensor([[.2, .7, .2], [.8, .7, .1], [.7, .2, .1]])[ripeness]
        return hue[:, :, None, None] + 0.25 * torch.randn(n, 3, 16, 16), ripeness

    def jitter(self, x):
        return x * (1 + 0.1 * torch.randn(len(x), 1, 1, 1)) + 0.05 * torch.randn_like(x)

    @property
    def decay(self):
        return self.decay0 + self.ramp * self.iteration

    @torch.no_grad()
    def follow(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.mul_(self.decay).add_(s, alpha=1 - self.decay)

    def supervised(self, x, y):
        return F.cross_entropy(self.student(self.jitter(x)), y)

    def consistency(self, u):
        with torch.no_grad():
            goal = self.teacher(self.jitter(u))
        return F.mse_loss(self.student(self.jitter(u)), goal)

    def train_step(self, labelled, unlabelled):
        self.iteration += 1
        ce = self.supervised(*labelled)
        mse = self.consistency(unlabelled)
        total = ce + self.weight * mse
        self.optimizer.zero_grad()
        total.backward()
        self.optimizer.step()
        self.follow()
        return total.item(), ce.item(), mse.item()

    def fit(self, steps):
        labelled = self.make_crates(8)
        pool, _ = self.make_crates(256)
        for k in range(steps):
            u = pool[torch.randperm(256)[:24]]
            total, ce, mse = self.train_step(labelled, u)
            print(f"{k + 1:4d} total {total:.8g}  ce {ce:.8g}  consistency {mse:.8g}")

    def weights(self):
        return sum(p.abs().sum().item() for m in (self.student, self.teacher) for p in m.parameters())


if __name__ == "__main__":
    mt = MeanTeacher(seed=4)
    mt.fit(70)
    print("final", mt.weights())
