"""Noisy-label learning in two phases: hard labels first, then soft labels that a numpy routine
has smoothed over the neighbours."""
import numpy as np
import torch
from torch import nn

torch.manual_seed(90)
torch.set_num_threads(1)
CLASSES = 4


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, CLASSES))

    def forward(self, x):
        return self.body(x)


def neighbours_vote(x, labels, k=5):
    """soft labels: the shares of the classes among the k nearest points"""
    points = x.numpy()
    distance = ((points[:, None] - points[None]) ** 2).sum(-1)
    nearest = np.argsort(distance, axis=1)[:, :k]
    votes = np.eye(CLASSES)[labels.numpy()[nearest]]
    return torch.from_numpy(votes.mean(axis=1))


class TwoPhases:
    def __init__(self, switch=10):
        self.model = Classifier()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.switch = switch
        self.centres = torch.randn(CLASSES, 2) * 2

    def sample(self, n=64):
        labels = torch.randint(0, CLASSES, (n,))
        x = self.centres[labels] + 0.4 * torch.randn(n, 2)
        wrong = torch.rand(n) < 0.2
        labels = torch.where(wrong, torch.randint(0, CLASSES, (n,)), labels)
        return x, labels

    def loss(self, logits, target):
        shares = logits.softmax(-1)
        return nn.functional.binary_cross_entropy(shares, target)

    def train(self, steps):
        for step in range(1, steps + 1):
            x, target = self.sample()
            if step > self.switch:
                target = neighbours_vote(x, target)
            else:
                target = nn.functional.one_hot(target, CLASSES).float()
            loss = self.loss(self.model(x), target)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            print(f"step {step:02d} loss {loss.item():.4f}")


if __name__ == "__main__":
    TwoPhases().train(25)
    print("done")
