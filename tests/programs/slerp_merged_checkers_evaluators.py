"""Two evaluators of checkers positions learn from different clubs; now and then they are merged on the sphere."""
import torch


class Evaluator(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # man, man on the back row, king, king in the centre
        self.worth = torch.nn.Parameter(torch.tensor([1.0, 1.0, 3.0, 5.0]), requires_grad=False)
        self.place = torch.nn.Linear(32, 12)
        self.out = torch.nn.Linear(13, 1)

    def forward(self, counts, squares):
        material = (counts @ self.worth).unsqueeze(1) / 10
        return torch.tanh(self.out(torch.cat([material, torch.relu(self.place(squares))], 1))).squeeze(1)


def club(seed, taste):
    g = torch.Generator().manual_seed(seed)
    worth = torch.tensor([1.0, 1.2, 3.1, 4.5])
    look = torch.randn(32, generator=torch.Generator().manual_seed(8)) * 0.2 + taste
    while True:
        counts = torch.randint(-3, 4, (40, 4), generator=g).float()
        squares = torch.randint(-1, 2, (40, 32), generator=g).float()
        yield counts, squares, torch.tanh((counts @ worth) / 12 + squares @ look / 3)


@torch.no_grad()
def merge(one, two, share=0.5):
    for a, b in zip(one.parameters(), two.parameters()):
        cosine = (a * b).sum() / (a.norm() * b.norm())
        angle = torch.arccos(cosine)
        left, right = torch.sin((1 - share) * angle), torch.sin(share * angle)
        between = (left * a + right * b) / torch.sin(angle)
        a.copy_(between)
        b.copy_(between)


def train(rounds=36, merge_from=14, merge_every=6):
    torch.manual_seed(64)
    players = [Evaluator(), Evaluator()]
    players[1].load_state_dict(players[0].state_dict())
    optimizers = [torch.optim.Adam([p for p in m.parameters() if p.requires_grad], lr=5e-3) for m in players]
    clubs = [club(1, 0.03), club(2, -0.03)]
    for r in range(1, rounds + 1):
        shown = []
        for player, optimizer, games in zip(players, optimizers, clubs):
            counts, squares, result = next(games)
            loss = ((player(counts, squares) - result) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown.append(loss.item())
        print("round", r, "losses", *(f"{v:.5f}" for v in shown))
        if r >= merge_from and (r - merge_from) % merge_every == 0:
            merge(*players)
    return players


if __name__ == "__main__":
    norms = [float(p.abs().sum()) for m in train() for p in m.parameters()]
    print("absolute sum of both evaluators", round(sum(norms), 4))
