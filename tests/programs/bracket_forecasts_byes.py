"""Strengths of fencers from knockout brackets of 16.

Empty places in a bracket are byes: they hold an opponent of strength -inf, whom everybody beats for certain.
The likelihood of one bracket is written for one bracket, vmap makes the batch of it.
"""
import torch
from torch.func import grad_and_value, vmap

INF = float("inf")
FENCERS = 40
ROUNDS = 4


def play(rng, skill):
    """draw a bracket and fence it: places (16, -1 is a bye) and winners of the 8 + 4 + 2 + 1 bouts (as places)"""
    entries = int(torch.randint(9, 17, (1,), generator=rng))
    order = torch.randperm(FENCERS, generator=rng)[:entries]
    places = torch.full((16,), -1)
    places[0::2] = order[:8]                     # nobody meets a bye in round two
    places[1:1 + 2 * (entries - 8):2] = order[8:]
    alive, winners = list(range(16)), []
    for _ in range(ROUNDS):
        nxt = []
        for a, b in zip(alive[0::2], alive[1::2]):
            if places[b] < 0:
                nxt.append(a)
                continue
            p = torch.sigmoid(skill[places[a]] - skill[places[b]])
            nxt.append(a if torch.rand((), generator=rng) < p else b)
        winners += nxt
        alive = nxt
    return places, torch.tensor(winners)


def bracket_loss(strength, places, winners):
    seat = torch.where(places < 0, -INF, strength[places.clamp(min=0)])
    log_p, alive, done = 0.0, torch.arange(16), 0
    for r in range(ROUNDS):
        bouts = 8 >> r
        won = winners[done:done + bouts]
        pair = alive.view(bouts, 2)
        lost = pair.sum(1) - won
        log_p = log_p + torch.nn.functional.logsigmoid(seat[won] - seat[lost]).sum()
        alive, done = won, done + bouts
    return -log_p


def main():
    rng = torch.Generator().manual_seed(64)
    skill = torch.randn(FENCERS, generator=rng) * 1.5
    brackets = [play(rng, skill) for _ in range(96)]
    places = torch.stack([p for p, _ in brackets])
    winners = torch.stack([w for _, w in brackets])

    strength = torch.nn.Parameter(torch.zeros(FENCERS))
    adagrad = torch.optim.Adagrad([strength], lr=0.25)
    per_bracket = vmap(grad_and_value(bracket_loss), in_dims=(None, 0, 0))
    for week in range(32):
        pick = torch.randperm(96, generator=rng)[:24]
        g, value = per_bracket(strength.detach(), places[pick], winners[pick])
        strength.grad = g.mean(0) + 0.02 * strength.detach()
        adagrad.step()
        certain = (places[pick] < 0).sum().item()
        print(f"week {week + 1:2d}: {value.mean().item():.4f} nats a bracket, {certain} byes")
    print("rank agreement", round(torch.corrcoef(torch.stack([strength.detach(), skill]))[0, 1].item(), 3))
    print("sum of squared strengths", round(strength.detach().square().sum().item(), 4))


main()
