#!/usr/bin/env python
# Restoring a floor mosaic: which recipe of the five glass pastes gives the colour that a lost tessera had?
# Recipes are fractions: not negative, and one in sum.
import torch


class Floor:
    def __init__(self, seed=30):
        g = torch.Generator().manual_seed(seed)
        self.pastes = torch.tensor([[0.85, 0.80, 0.70],   # limestone
                                    [0.75, 0.25, 0.15],   # brick
                                    [0.20, 0.35, 0.65],   # cobalt glass
                                    [0.30, 0.55, 0.30],   # copper green
                                    [0.31, 0.30, 0.32]])  # basalt
        true = torch.distributions.Dirichlet(torch.full((5,), 0.8))
        torch.manual_seed(seed)
        recipe = true.sample((80,))
        self.colour = recipe @ self.pastes + 0.01 * torch.randn(80, 3, generator=g)
        # tesserae under the hearth are black with soot
        self.colour[50:54] = 0.02


def back_to_fractions(recipes):
    with torch.no_grad():
        recipes.clamp_(min=0)
        recipes /= recipes.sum(dim=1, keepdim=True)


def restore(floor, rounds=34):
    recipes = torch.full((80, 5), 0.2, requires_grad=True)
    light = torch.ones(3, requires_grad=True)
    sgd = torch.optim.SGD([{"params": [recipes], "lr": 0.23},
                           {"params": [light], "lr": 1e-4}], momentum=0.9)
    for r in range(rounds):
        shown = (recipes @ floor.pastes) * light
        misfit = (shown - floor.colour).pow(2).sum()
        sgd.zero_grad()
        misfit.backward()
        sgd.step()
        back_to_fractions(recipes)
        print(f"round {r + 1}: misfit {misfit.item():.5f}, most used paste {int(recipes.sum(0).argmax())}")
    return recipes.detach(), light.detach()


recipes, light = restore(Floor())
print("recipes and light, squared:", f"{float(recipes.square().sum() + light.square().sum()):.5f}")
