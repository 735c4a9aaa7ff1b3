"""Spelled words over a noisy radio: a small recurrent encoder and a lattice of our own, in the log domain."""
import torch
from torch import nn

LETTERS = "abcdefghiklmnoprstuvwy"
WORDS = """lamp barn fish corn salt wind harp milk goat plum
rope gate sand tide bird moth clay hemp fern kelp
ruby silk oats bark mint sage dusk lark swan toad
colt mare lamb duck hens yard path stem lime gold
rain snow hail mist pond wolf bear deer hare seal
mole vole crab clam rock dune surf wave star moon
dawn west elm oak""".split()
BLANK = 0
NEG = float("-inf")


def log_add(*terms):
    stack = torch.stack(terms)
    top = stack.max()
    shifted = stack - top
    return top + shifted.exp().sum().log()


def lattice_cost(logp, target):
    """logp: frames x symbols; only the cells that can be reached are visited."""
    labels = [BLANK]
    for symbol in target:
        labels += [symbol, BLANK]
    n = len(labels)
    none = torch.tensor(NEG)
    alpha = [none] * n
    alpha[0], alpha[1] = logp[0, BLANK], logp[0, labels[1]]
    for t in range(1, logp.shape[0]):
        previous, alpha = alpha, [none] * n
        for s in range(min(n, 2 * t + 2)):
            ways = [previous[s]]
            if s > 0:
                ways.append(previous[s - 1])
            if s > 1 and labels[s] != BLANK and labels[s] != labels[s - 2]:
                ways.append(previous[s - 2])
            alpha[s] = log_add(*ways) + logp[t, labels[s]]
    return -log_add(alpha[-1], alpha[-2])


class Listener(nn.Module):
    def __init__(self, features=12, hidden=20):
        super().__init__()
        self.encoder = nn.GRU(features, hidden, batch_first=True)
        self.output = nn.Linear(hidden, len(LETTERS) + 1)

    def forward(self, sound):
        states, _ = self.encoder(sound)
        return self.output(states).log_softmax(-1)


def record(word, voice, generator):
    frames = [torch.zeros(12)]
    for letter in word:
        held = 1 + int(torch.randint(0, 2, (1,), generator=generator))
        frames += [voice[LETTERS.index(letter)]] * held
    clean = torch.stack(frames + [torch.zeros(12)])
    return clean + 0.2 * torch.randn(clean.shape, generator=generator)


def main():
    torch.manual_seed(31)
    generator = torch.Generator().manual_seed(7)
    voice = torch.randn(len(LETTERS), 12, generator=generator)
    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    print("words on the sheet:", len(WORDS))
    for number in range(len(WORDS) // 2):
        pair = WORDS[2 * number: 2 * number + 2]
        optimizer.zero_grad()
        costs = []
        for word in pair:
            logp = model(record(word, voice, generator)[None])[0]
            costs.append(lattice_cost(logp, [LETTERS.index(c) + 1 for c in word]) / len(word))
        loss = sum(costs) / len(costs)
        loss.backward()
        optimizer.step()
        print(f"pair {number + 1:2d} {'/'.join(pair):12s} cost {loss.item():.5f}")
    print("sum of absolute weights", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
