"""Title tower and ingredient tower for a baker's notebook, trained with the debiased contrastive loss."""
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Settings:
    recipes: int = 48
    title_words: int = 40
    ingredients: int = 30
    dim: int = 16
    temperature: float = 0.25
    prior: float = 0.1          # chance that another recipe is really the same bread
    lr: float = 3e-3
    steps: int = 36
    seed: int = 17


class Notebook:
    def __init__(self, s: Settings):
        gen = torch.Generator().manual_seed(s.seed)
        style = torch.randn(s.recipes, 6, generator=gen)
        to_title = torch.randn(6, s.title_words, generator=gen)
        to_list = torch.randn(6, s.ingredients, generator=gen)
        self.titles = (style @ to_title + torch.randn(s.recipes, s.title_words, generator=gen) > 2.0).float()
        self.lists = torch.relu(style @ to_list + 0.3 * torch.randn(s.recipes, s.ingredients, generator=gen))


class Tower(nn.Module):
    def __init__(self, n_in: int, dim: int):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 32), nn.GELU(), nn.Linear(32, dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.body(x), dim=-1)


class DebiasedContrast(nn.Module):
    def __init__(self, temperature: float, prior: float):
        super().__init__()
        self.temperature, self.prior = temperature, prior

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        weight = torch.exp(a @ b.t() / self.temperature)
        pos = weight.diagonal()
        others = weight.sum(1) - pos
        n = weight.shape[0] - 1
        neg = (others - self.prior * n * pos) / (1.0 - self.prior)
        share = pos / (pos + neg)
        return -torch.log(share).mean()


def train(s: Settings) -> nn.ModuleDict:
    torch.manual_seed(s.seed)
    book = Notebook(s)
    towers = nn.ModuleDict({"title": Tower(s.title_words, s.dim), "list": Tower(s.ingredients, s.dim)})
    contrast = DebiasedContrast(s.temperature, s.prior)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=s.lr)
    for step in range(s.steps):
        a, b = towers["title"](book.titles), towers["list"](book.lists)
        loss = contrast(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hit = (a @ b.t()).argmax(1).eq(torch.arange(s.recipes)).float().mean()
        print(f"[{step + 1:02d}/{s.steps}] loss={loss.item():.5f} recall@1={hit.item():.3f}")
    return towers


if __name__ == "__main__":
    trained = train(Settings())
    print("sum |w| =", format(sum(p.abs().sum().item() for p in trained.parameters()), ".5f"))
