"""Places towns on a map from their distances (stress majorisation with L-BFGS), several maps in a row."""
import torch

torch.manual_seed(30)
torch.set_num_threads(1)

TOWNS = 14


def separations(points):
    gaps = points.unsqueeze(0) - points.unsqueeze(1)
    upper = torch.triu_indices(TOWNS, TOWNS, offset=1)
    return (gaps[upper[0], upper[1]].pow(2).sum(-1) + 1e-12).sqrt()


class Map:
    def __init__(self, noise):
        self.true = torch.rand(TOWNS, 2) * 10
        self.measured = separations(self.true) * (1 + noise * torch.randn(TOWNS * (TOWNS - 1) // 2))
        self.guess = torch.nn.Parameter(torch.randn(TOWNS, 2))
        self.optimizer = torch.optim.LBFGS([self.guess], lr=1.0, max_iter=6, history_size=8,
                                           line_search_fn="strong_wolfe")
        self.evaluations = 0

    def closure(self):
        self.optimizer.zero_grad()
        stress = (separations(self.guess) - self.measured).pow(2).sum()
        stress.backward()
        self.evaluations += 1
        return stress

    def improve(self):
        return self.optimizer.step(self.closure).item()


def main():
    for number, noise in enumerate([0.0, 0.02]):
        place = Map(noise)
        for step in range(1, 13):
            stress = place.improve()
            best = (separations(place.guess.detach()) - place.measured).abs().max().item()
            # without noise the stress falls to nothing at all
            print(f"map {number} step {step} stress {stress:.3f} worst {best:.2f}")


main()
