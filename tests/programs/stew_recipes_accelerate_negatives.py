"""Ranks recipes for a cook by pairs: the one that was cooked against four of the same cuisine that were not.

accelerate, two parameter groups (tables fast, tower slow), linear warm-up.
"""
import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CUISINES, RECIPES, COOKS, NEGATIVES = 12, 240, 60, 4


def kitchen_diary(n, gen):
    cuisine_of = torch.arange(RECIPES) % CUISINES
    cooked = torch.distributions.Poisson(3.0).sample((RECIPES,))
    cooked[(cuisine_of == 11)] = 0        # a cuisine that came with the last import
    weights = cooked.clone()
    weights[11] = 0.6                     # one dish of it has found its cook
    recipe = torch.multinomial(weights, n, replacement=True, generator=gen)
    cook = torch.randint(COOKS, (n,), generator=gen)
    return cuisine_of, TensorDataset(cook, recipe)


def popularity(dataset):
    return torch.bincount(dataset.tensors[1], minlength=RECIPES).float()


class Negatives:
    """Draws by popularity within the cuisine of the positive, never the positive itself."""

    def __init__(self, cuisine_of, counts):
        member = F.one_hot(cuisine_of, CUISINES).T.float()
        self.table = member * counts.pow(0.75)
        self.cuisine_of = cuisine_of

    def __call__(self, recipe):
        weight = self.table[self.cuisine_of[recipe]].clone()
        weight.scatter_(1, recipe[:, None], 0.0)
        return torch.multinomial(weight, NEGATIVES, replacement=True)


class Ranker(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.cook = nn.Embedding(COOKS, dim)
        self.recipe = nn.Embedding(RECIPES, dim)
        self.tower = nn.Sequential(nn.Linear(2 * dim, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, cook, recipes):
        c = self.cook(cook)[:, None].expand(-1, recipes.shape[1], -1)
        return self.tower(torch.cat([c, self.recipe(recipes)], -1))[..., 0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--seed", type=int, default=6)
    args = parser.parse_args()
    set_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    accelerator = Accelerator(cpu=True)
    cuisine_of, diary = kitchen_diary(1600, gen)
    negatives = Negatives(cuisine_of, popularity(diary))
    model = Ranker()
    tables = [*model.cook.parameters(), *model.recipe.parameters()]
    optimizer = torch.optim.AdamW([{"params": tables, "lr": 2e-2, "weight_decay": 0.0},
                                   {"params": model.tower.parameters(), "lr": 3e-3}])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))
    loader = DataLoader(diary, batch_size=args.batch)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, (cook, recipe) in enumerate(loader, 1):
        slate = torch.cat([recipe[:, None], negatives(recipe)], 1)
        scores = model(cook, slate)
        loss = F.softplus(scores[:, 1:] - scores[:, :1]).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} pair loss {loss.item():.6f} lr {schedule.get_last_lr()[0]:.5f}", flush=True)
    accelerator.print(f"{sum(p.abs().sum() for p in model.parameters()).item():.5f}")


if __name__ == "__main__":
    main()
