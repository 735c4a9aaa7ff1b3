"""Motifs in stitch charts of ganseys: V (stitch kind x chart) ~ W H with all entries nonnegative.

Lee and Seung's rule written as gradient descent whose rates are chosen per entry.
"""
import torch

STITCHES = ["knit", "purl", "cable_left", "cable_right", "moss", "yarn_over",
            "bobble", "slip", "twist", "k2tog", "ssk", "nupp"]


def charts(n_charts, motifs, seed):
    gen = torch.Generator().manual_seed(seed)
    basis = torch.rand(len(STITCHES), motifs, generator=gen) ** 3
    basis[STITCHES.index("nupp")] *= 0.0006
    use = torch.rand(motifs, n_charts, generator=gen) ** 2
    return (basis @ use) * (0.95 + 0.1 * torch.rand(len(STITCHES), n_charts, generator=gen))


class Motifs(torch.nn.Module):
    def __init__(self, rows, cols, rank):
        super().__init__()
        self.w = torch.nn.Parameter(0.2 + torch.rand(rows, rank))
        self.h = torch.nn.Parameter(0.2 + torch.rand(rank, cols))

    def forward(self):
        return self.w @ self.h

    @torch.no_grad()
    def rates(self):
        wh = self.w @ self.h
        rate_w = self.w / (wh @ self.h.T)
        rate_h = self.h / (self.w.T @ wh)
        return rate_w, rate_h

    @torch.no_grad()
    def tidy(self, floor):
        self.w.masked_fill_(self.w < floor, 0.0)


def main():
    torch.manual_seed(44)
    v = charts(40, 4, seed=7)
    model = Motifs(*v.shape, rank=4)
    for rnd in range(1, 41):
        residual = 0.5 * (v - model()).square().sum()
        residual.backward()
        rate_w, rate_h = model.rates()
        model.w.data -= 0.5 * rate_w * model.w.grad
        model.h.data -= 0.5 * rate_h * model.h.grad
        model.w.grad = model.h.grad = None
        if rnd % 18 == 0:
            model.tidy(2e-3)
        print(f"round {rnd:>2} residual {residual.item():.6f}")
    print("mass of both factors", model.w.sum().item() + model.h.sum().item())


main()
