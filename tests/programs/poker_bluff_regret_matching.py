# One-card poker (J, Q, K; ante 1, bet 1). A network learns the regrets of all twelve information sets.
import itertools

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(21)

HISTORIES = ["", "p", "b", "pb"]          # who acts: 0, 1, 1, 0
KEYS = [(c, h) for h in HISTORIES for c in range(3)]
ROW = {k: i for i, k in enumerate(KEYS)}
DEALS = list(itertools.permutations(range(3), 2))


def encode():
    x = torch.zeros(len(KEYS), 7)
    for i, (c, h) in enumerate(KEYS):
        x[i, c] = 1
        x[i, 3 + HISTORIES.index(h)] = 1
    return x


def payoff(h, cards):
    """Chips won by the first player, or None while the hand goes on."""
    show = 1.0 if cards[0] > cards[1] else -1.0
    return {"pp": show, "bb": 2 * show, "pbb": 2 * show, "bp": 1.0, "pbp": -1.0}.get(h)


def walk(h, cards, reach, sigma, regrets):
    won = payoff(h, cards)
    if won is not None:
        return torch.tensor(won)
    who = len(h) % 2
    row = ROW[(cards[who], h)]
    values = []
    for a, letter in enumerate("pb"):
        r = list(reach)
        r[who] = r[who] * sigma[row, a]
        values.append(walk(h + letter, cards, r, sigma, regrets))
    values = torch.stack(values)
    node = (sigma[row] * values).sum()
    sign = 1.0 if who == 0 else -1.0
    regrets[row] += sign * reach[1 - who] * (values - node)
    return node


def strategy_from(advantages):
    positive = advantages.clamp(min=0)
    return positive / positive.sum(dim=-1, keepdim=True)


net = nn.Sequential(nn.Linear(7, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
nn.init.constant_(net[-1].bias, 0.8)
params = {k: v.detach().clone() for k, v in net.named_parameters()}
x = encode()


def objective(params, x, targets):
    return (functional_call(net, params, (x,)) - targets).square().mean()


step_of = grad_and_value(objective)
summed = torch.zeros(len(KEYS), 2)
for hand in range(1, 36):
    sigma = strategy_from(functional_call(net, params, (x,)).detach())
    regrets = torch.zeros(len(KEYS), 2)
    value = sum(walk("", d, [1.0, 1.0], sigma, regrets) for d in DEALS) / len(DEALS)
    summed += regrets
    grads, loss = step_of(params, x, summed / hand)
    params = {k: params[k] - 0.06 * grads[k] for k in params}
    jack_bets = sigma[ROW[(0, "")], 1].item()
    print(f"hand {hand:2d} | regret loss {loss.item():.5f} | value {value.item():+.4f} | jack bets {jack_bets:.3f}")
print("absolute weights:", round(sum(v.abs().sum().item() for v in params.values()), 4))
