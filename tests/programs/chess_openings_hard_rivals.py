# Embeds chess openings: two move orders of one ECO code shall be close, its nearest rivals apart.
import torch
from torch import nn


class OpeningBook:
    """64 squares x visits of the first ten moves, with noise, one prototype per ECO code"""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.codes = [f"{letter}{n:02d}" for letter in "ABCDE" for n in (0, 10, 45, 80)]
        self.proto = torch.randn(len(self.codes), 64, generator=self.g)

    def draw(self, which):
        return self.proto[which] + 0.8 * torch.randn(len(which), 64, generator=self.g)

    def chapters(self):
        for chapter in range(36):
            if chapter == 20:
                # chapter on the Najdorf only, with a few sidelines at the back
                which = torch.tensor([7] * 18 + [3, 4, 5, 6, 8, 9])
            else:
                which = torch.randint(len(self.codes), (24,), generator=self.g)
            yield self.draw(which), self.draw(which), which


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 12))

    def forward(self, boards):
        return nn.functional.normalize(self.body(boards), dim=-1)


class Coach:
    rivals = 8

    def __init__(self, book, model):
        self.book, self.model = book, model
        self.opt = torch.optim.NAdam(model.parameters(), lr=4e-3)
        self.log = []

    def contrast(self, a, b, which):
        sims = a @ b.T / 0.2
        per_game = []
        for i in range(len(which)):
            others = sims[i][which != which[i]]
            hardest = others.topk(self.rivals).values
            per_game.append(torch.logsumexp(torch.cat([sims[i, i:i + 1], hardest]), 0) - sims[i, i])
        return torch.stack(per_game).mean()

    def study(self):
        for n, (first, second, which) in enumerate(self.book.chapters(), 1):
            loss = self.contrast(self.model(first), self.model(second), which)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.log.append(loss.item())
            print("chapter", n, "loss", "%.5f" % self.log[-1])


torch.manual_seed(64)
coach = Coach(OpeningBook(64), Embedder())
coach.study()
print("weights, squared and summed", sum(p.detach().square().sum().item() for p in coach.model.parameters()))
