# starter log: jars of flour + water, sugar (g/100g) and yeast (arbitrary) read off every 30 min
# model:  sugar' = -vmax * sqrt(sugar) * yeast      yeast' = growth * sqrt(sugar) * yeast - death * yeast
import torch

torch.manual_seed(0)
DT = 0.25
N = 40


def clean(v):
    return torch.clamp(v, min=0.0)


def ferment(log_vmax, log_growth, log_death, sugar, yeast, n=N):
    vmax, growth, death = log_vmax.exp(), log_growth.exp(), log_death.exp()
    sugars, yeasts = [sugar], [yeast]
    for _ in range(n):
        uptake = torch.sqrt(sugar)
        eaten = vmax * uptake * yeast
        born = growth * uptake * yeast
        sugar = clean(sugar - DT * eaten)
        yeast = clean(yeast + DT * (born - death * yeast))
        sugars.append(sugar)
        yeasts.append(yeast)
    return torch.stack(sugars), torch.stack(yeasts)


# what the kitchen notebook says (three jars, different amounts of old starter)
jars_sugar = torch.tensor([3.0, 2.6, 3.4])
jars_yeast = torch.tensor([0.30, 0.45, 0.22])
with torch.no_grad():
    true = [torch.log(torch.tensor(v)) for v in (0.62, 0.21, 0.05)]
    notes_s, notes_y = ferment(*true, jars_sugar, jars_yeast)
    notes_s = notes_s + 0.03 * torch.randn(notes_s.shape)
    notes_y = notes_y * (1 + 0.03 * torch.randn(notes_y.shape))

log_vmax = torch.nn.Parameter(torch.log(torch.tensor(0.12)))
log_growth = torch.nn.Parameter(torch.log(torch.tensor(0.10)))
log_death = torch.nn.Parameter(torch.log(torch.tensor(0.08)))
theta = [log_vmax, log_growth, log_death]

opt = torch.optim.RMSprop(theta, lr=0.06, alpha=0.9, momentum=0.2)
decay = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.985)

for it in range(1, 37):
    s, y = ferment(log_vmax, log_growth, log_death, jars_sugar, jars_yeast)
    misfit = ((s - notes_s) ** 2).mean() + 4.0 * ((y - notes_y) ** 2).mean()
    opt.zero_grad()
    misfit.backward()
    opt.step()
    decay.step()
    now = ", ".join(f"{t.detach().exp().item():.4f}" for t in theta)
    print(f"{it:3d} | misfit {misfit.item():.6f} | vmax, growth, death = {now}")

print("abs sum of parameters", sum(t.detach().abs().item() for t in theta))
