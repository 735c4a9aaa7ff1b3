"""Recurrent PPO for a small whist: follow the led suit if you can, win the trick with the higher card."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    tables: int = 48
    hand: int = 6
    suits: int = 3
    ranks: int = 8
    rounds: int = 26
    epochs: int = 3
    clip: float = 0.2
    target_kl: float = 0.003
    entropy: float = 0.02
    lr: float = 8e-3


cfg = Config()
DECK = cfg.suits * cfg.ranks
rng = torch.Generator().manual_seed(808)


class Player(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encode = nn.Linear(2 * DECK, width)
        self.memory = nn.GRUCell(width, width)
        self.card = nn.Linear(width, DECK)
        self.worth = nn.Linear(width, 1)

    def forward(self, seen, h, legal):
        h = self.memory(torch.tanh(self.encode(seen)), h)
        logits = self.card(h).masked_fill(~legal, float("-inf"))
        return F.log_softmax(logits, -1), self.worth(h).squeeze(-1), h

    def begin(self, n):
        return torch.zeros(n, self.memory.hidden_size)


def legal_cards(hand, led):
    suit = torch.arange(DECK) // cfg.ranks
    follow = hand & (suit[None] == (led // cfg.ranks)[:, None])
    return torch.where(follow.any(-1, keepdim=True), follow, hand)


@torch.no_grad()
def deal_and_play(player):
    order = torch.rand(cfg.tables, DECK, generator=rng).argsort(-1)
    hand = torch.zeros(cfg.tables, DECK, dtype=torch.bool).scatter_(1, order[:, :cfg.hand], True)
    leads = order[:, cfg.hand:2 * cfg.hand]
    h, log = player.begin(cfg.tables), []
    for t in range(cfg.hand):
        led = leads[:, t]
        seen = torch.cat([hand.float(), F.one_hot(led, DECK).float()], -1)
        legal = legal_cards(hand, led)
        logp, value, h = player(seen, h, legal)
        act = torch.multinomial(logp.exp(), 1, generator=rng).squeeze(1)
        won = (act // cfg.ranks == led // cfg.ranks) & (act > led)
        hand = hand.scatter(1, act[:, None], False)
        log.append((seen, legal, act, logp.gather(1, act[:, None]).squeeze(1), value, won.float()))
    seen, legal, act, old, value, reward = (torch.stack(z) for z in zip(*log))
    returns = reward.flip(0).cumsum(0).flip(0)
    return seen, legal, act, old, value, returns


def replay(player, seen, legal):
    h, logs, values = player.begin(seen.shape[1]), [], []
    for t in range(seen.shape[0]):
        lp, v, h = player(seen[t], h, legal[t])
        logs.append(lp)
        values.append(v)
    return torch.stack(logs), torch.stack(values)


def explained(value, returns):
    # the last trick alone; tables that were all lost there have no variance, which prints nan
    few = slice(0, 4)
    return float(1 - (returns[-1, few] - value[-1, few]).var() / returns[-1, few].var())


def main():
    torch.manual_seed(31)
    player = Player()
    opt = torch.optim.Adam(player.parameters(), lr=cfg.lr)
    updates = 0
    for r in range(1, cfg.rounds + 1):
        seen, legal, act, old, value, returns = deal_and_play(player)
        adv = returns - value
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        used, last = 0, float("nan")
        for _ in range(cfg.epochs):
            logp, v = replay(player, seen, legal)
            new = logp.gather(2, act[..., None]).squeeze(2)
            ratio = (new - old).exp()
            kl = float((ratio - 1 - (new - old)).detach().mean())
            if kl > cfg.target_kl:
                break
            gain = torch.min(ratio * adv, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv).mean()
            spread = -(logp.exp() * logp.masked_fill(~legal, 0.0)).sum(-1).mean()
            loss = -gain + 0.05 * F.mse_loss(v, returns) - cfg.entropy * spread
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(player.parameters(), 0.5)
            opt.step()
            used += 1
            last = loss.item()
        updates += used
        print(f"round {r} loss {last:.7f} tricks {float(returns[0].mean()):.4f} kl {kl:.6f} "
              f"updates {updates} explained {explained(value, returns):.4f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in player.parameters()):.6f}", flush=True)


main()
