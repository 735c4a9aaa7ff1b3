# What to cook from the leftovers? Taste vectors for households, property vectors for recipes.
# Per-household gradients with torch.func; households and recipes are moved in turn, each by its own optimizer.
import torch
from torch.func import grad, vmap

torch.manual_seed(88)
H, R, D = 14, 40, 5

true_taste = torch.randn(H, D)
true_recipe = torch.randn(R, D)
stars = true_taste @ true_recipe.T + 0.2 * torch.randn(H, R)
cooked = torch.rand(H, R) < 0.45
stars[~cooked] = float("nan")                     # never cooked, never rated
stars[5], cooked[5] = float("nan"), False         # household 5 joins later

taste = torch.nn.Parameter(0.3 * torch.randn(H, D))
recipe = torch.nn.Parameter(0.3 * torch.randn(R, D))
households = torch.optim.SGD([taste], lr=1.0, momentum=0.5)
recipes = torch.optim.Adagrad([recipe], lr=0.3)


def displeasure(mine, recipe, stars):
    known = ~torch.isnan(stars)
    miss = torch.nan_to_num(stars) - recipe @ mine
    return (known * miss ** 2).sum() / known.sum().clamp(min=1) - 1.0     # one star off is as good as nothing


each = vmap(displeasure, in_dims=(0, None, 0))
each_grad = vmap(grad(displeasure, argnums=(0, 1)), in_dims=(0, None, 0))


def menu(n=3):
    """the best recipes that a household has not cooked yet"""
    with torch.no_grad():
        hope = (taste @ recipe.T).masked_fill(cooked, float("-inf"))
        return hope.topk(n, dim=1)


for week in range(1, 37):
    g_taste, g_recipe = each_grad(taste.detach(), recipe.detach(), stars)
    length = g_recipe.flatten(1).norm(dim=1)
    shrink = (1.0 / length).clamp(max=4.0)         # a silent household has length 0 and simply keeps the cap
    if week % 2:
        taste.grad = 0.2 * g_taste
        households.step()
        households.zero_grad()
    else:
        recipe.grad = torch.einsum("h,hrd->rd", shrink, g_recipe) / H
        recipes.step()
        recipes.zero_grad()
    losses = each(taste.detach(), recipe.detach(), stars)
    print(f"week {week} {'households' if week % 2 else 'recipes'} loss {losses.mean().item():+.4f} "
          f"worst {losses.max().item():+.4f}")
    if week == 15:
        with torch.no_grad():
            taste[5] = taste.mean(0)
            stars[5, ::3] = (true_recipe @ true_taste[5])[::3]
            cooked[5, ::3] = True
        print("household 5 has joined")
    if week == 24:
        with torch.no_grad():
            recipe[30:] = 3.0 * torch.randn(10, D)   # ten recipes are rewritten
        households.state.clear()
        print("ten recipes are new")

hope, what = menu()
print("for household 0:", what[0].tolist(), "for household 5:", what[5].tolist())
print("squares of both tables:", (taste.detach().square().sum() + recipe.detach().square().sum()).item())
