"""A quantile regression forest on river nitrate, and a small network that learns its quantiles."""
import torch
from torch import nn
from torch.func import functional_call, vmap

LEVELS = torch.tensor([0.1, 0.5, 0.9])


class Tree:
    """Random oblique splits; children beyond the last split have the threshold inf, so all goes left."""

    def __init__(self, x, y, depth, gen):
        self.axes = torch.randn(2 ** depth - 1, x.shape[1], generator=gen)
        self.cuts = torch.full((2 ** depth - 1,), torch.inf)
        self.depth = depth
        nodes = torch.zeros(len(x), dtype=torch.long)
        for level in range(depth):
            for node in range(2 ** level - 1, 2 ** (level + 1) - 1):
                here = nodes == node
                if here.sum() >= 8:
                    self.cuts[node] = (x[here] @ self.axes[node]).median()
            nodes = self.descend(x, nodes)
        self.table = torch.full((2 ** depth, len(LEVELS)), torch.nan)
        for leaf in range(2 ** depth):
            inside = y[nodes - (2 ** depth - 1) == leaf]
            if len(inside) >= 6:
                self.table[leaf] = torch.quantile(inside, LEVELS)

    def descend(self, x, nodes):
        right = (x * self.axes[nodes]).sum(1) > self.cuts[nodes]
        return 2 * nodes + 1 + right.long()

    def __call__(self, x):
        nodes = torch.zeros(len(x), dtype=torch.long)
        for _ in range(self.depth):
            nodes = self.descend(x, nodes)
        return self.table[nodes - (2 ** self.depth - 1)]


class Student(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.hidden = nn.Linear(5, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x):
        low, step1, step2 = self.out(torch.tanh(self.hidden(x))).unbind(-1)
        middle = low + nn.functional.softplus(step1)
        return torch.stack([low, middle, middle + nn.functional.softplus(step2)], -1)

    def widen(self, extra):
        wider = Student(self.hidden.out_features + extra)
        with torch.no_grad():
            n = self.hidden.out_features
            wider.hidden.weight[:n], wider.hidden.bias[:n] = self.hidden.weight, self.hidden.bias
            wider.out.weight[:, :n], wider.out.weight[:, n:] = self.out.weight, 0.0
            wider.out.bias.copy_(self.out.bias)
        return wider


def nitrate(n, gen):
    x = torch.randn(n, 5, generator=gen)
    return x, x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + (0.2 + 0.3 * x[:, 3].abs()) * torch.randn(n, generator=gen)


def run():
    torch.manual_seed(41)
    gen = torch.Generator().manual_seed(410)
    forest = [Tree(*nitrate(90, gen), depth=4, gen=gen) for _ in range(3)]
    student = Student()
    optimizer = torch.optim.NAdam(student.parameters(), lr=1e-2)
    best = -torch.inf
    for epoch in range(38):
        if epoch == 20:
            student = student.widen(12)
            optimizer = torch.optim.NAdam(student.parameters(), lr=2e-2)
        x, _ = nitrate(32, gen)
        answers = torch.stack([tree(x) for tree in forest])
        teacher = answers.nanmean(0)
        silent = teacher.isnan().any(-1)
        weights = dict(student.named_parameters())
        guess = vmap(lambda row: functional_call(student, weights, (row,)))(x)
        error = (guess - torch.where(silent[:, None], guess.detach(), teacher)).abs()
        loss = torch.where(silent, -torch.inf, error.sum(-1)).topk(8).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = max(best, -loss.item())
        print(f"epoch {epoch}: eight hardest {loss.item():.5f}, best {best:.5f}, silent leaves {int(answers.isnan().any(-1).sum())}")
    print("weights, absolute sum:", sum(p.detach().abs().sum().item() for p in student.parameters()))


run()
