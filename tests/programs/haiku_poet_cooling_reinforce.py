"""A poet that writes letter by letter and is paid for verse that can be spoken.

REINFORCE with a learned baseline and an entropy bonus.  The poet writes ever more soberly: the temperature of
its letters falls from 1 to 0.02.
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ALPHABET = "aeioulmnrstkhw ,"
VOWELS = {i for i, c in enumerate(ALPHABET) if c in "aeiou"}
BLANKS = {i for i, c in enumerate(ALPHABET) if c in " ,"}


class Poet(nn.Module):
    def __init__(self, n=len(ALPHABET), width=48):
        super().__init__()
        self.letters = nn.Embedding(n + 1, 16)       # the last one opens the poem
        self.cell = nn.GRUCell(16, width)
        self.pen = nn.Linear(width, n)
        self.baseline = nn.Linear(width, 1)
        self.width = width

    def write(self, poems, length, temperature, g):
        h = torch.zeros(poems, self.width)
        letter = torch.full((poems,), len(ALPHABET))
        text, chosen, spread, value = [], [], [], []
        for _ in range(length):
            h = self.cell(self.letters(letter), h)
            scores = self.pen(h) / temperature
            gumbel = -torch.empty_like(scores).exponential_(generator=g).log()
            letter = (scores.detach() + gumbel).argmax(-1)
            probs = scores.softmax(-1)
            spread.append(-(probs * probs.log()).sum(-1))
            chosen.append(F.log_softmax(scores, -1).gather(1, letter[:, None]).squeeze(1))
            value.append(self.baseline(h.detach()).squeeze(1))
            text.append(letter)
        return torch.stack(text, 1), torch.stack(chosen, 1), torch.stack(spread, 1), torch.stack(value, 1)


def pay(text):
    """A coin for each change of vowel and consonant; blanks earn something after two to six letters only."""
    coins = torch.zeros(text.shape)
    for i, poem in enumerate(text.tolist()):
        word = 0
        for t in range(1, len(poem)):
            a, b = poem[t - 1], poem[t]
            if b in BLANKS:
                coins[i, t] = 1.5 if 2 <= word <= 6 else -1.0
                word = 0
            else:
                coins[i, t] = 1.0 if (a in VOWELS) != (b in VOWELS) else -0.5
                word += 1
    return coins


def to_go(coins, gamma=0.9):
    out, run = torch.zeros_like(coins), torch.zeros(len(coins))
    for t in reversed(range(coins.shape[1])):
        run = coins[:, t] + gamma * run
        out[:, t] = run
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--poems", type=int, default=24)
    ap.add_argument("--length", type=int, default=17)
    ap.add_argument("--cooling", type=float, default=0.9)
    ap.add_argument("--coldest", type=float, default=0.02)
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(575)
    g = torch.Generator().manual_seed(17)
    poet = Poet()
    opt = torch.optim.RMSprop(poet.parameters(), lr=2e-3)
    temperature = 1.0
    for step in range(1, a.steps + 1):
        text, chosen, spread, value = poet.write(a.poems, a.length, temperature, g)
        gain = to_go(pay(text))
        advantage = gain - value.detach()
        loss = -(advantage * chosen).mean() + 0.5 * F.mse_loss(value, gain) - 0.01 * spread.mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(poet.parameters(), 1.0)
        opt.step()
        line = "".join(ALPHABET[c] for c in text[0].tolist())
        print(f"{step:3d} pay {gain[:, 0].mean().item():+.5f} loss {loss.item():+.6f} |{line}|", flush=True)
        temperature = max(a.coldest, temperature * a.cooling)
    print(sum(p.abs().sum().item() for p in poet.parameters()), flush=True)


if __name__ == "__main__":
    main()
