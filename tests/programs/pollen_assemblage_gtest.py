"""
Transfer function from lake-site covariates to pollen assemblages.

The misfit is the multinomial G statistic, 2 * sum(n log(n / E n)), which is
written with xlogy so that absent taxa (n = 0) contribute nothing.
"""
import random
from typing import Iterator, List, Tuple

import torch
from torch import Tensor, nn
from torch.special import xlogy

TAXA = ["Poaceae", "Pinus", "Alnus", "Betula", "Artemisia"]
SITES_PER_BATCH = 12
GRAINS = 300


def synthesise(n: int, gen: torch.Generator) -> Tuple[Tensor, Tensor]:
    elevation_km = 0.3 + 2.2 * torch.rand(n, generator=gen)
    rainfall_m = 0.4 + 1.2 * torch.rand(n, generator=gen)
    logits = torch.stack(
        [
            1.5 * elevation_km - 1.0,
            0.7 * elevation_km + 0.2 * rainfall_m,
            1.5 * rainfall_m - 0.5,
            1.0 - 0.4 * elevation_km,
            -1.2 * rainfall_m,
        ],
        dim=1,
    )
    share = logits.softmax(1)
    picks = torch.multinomial(share, GRAINS, replacement=True, generator=gen)
    counts = torch.zeros(n, len(TAXA)).scatter_add_(1, picks, torch.ones(n, GRAINS))
    return torch.stack([elevation_km, rainfall_m], dim=1), counts


class TransferFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.response = nn.Linear(2, len(TAXA))

    def forward(self, site: Tensor) -> Tensor:
        return torch.softmax(self.response(site), dim=1)


def g_statistic(counts: Tensor, share: Tensor) -> Tensor:
    expected = share * counts.sum(1, keepdim=True)
    observed_part = xlogy(counts, counts)
    expected_part = xlogy(counts, expected)
    return 2.0 * (observed_part - expected_part).sum(1).mean()


def batches(x: Tensor, n: Tensor, order: List[int]) -> Iterator[Tuple[Tensor, Tensor]]:
    for i in range(0, len(order), SITES_PER_BATCH):
        rows = order[i : i + SITES_PER_BATCH]
        yield x[rows], n[rows]


def main() -> None:
    gen = torch.Generator().manual_seed(1916)
    torch.manual_seed(1916)
    random.seed(1916)
    x, n = synthesise(480, gen)
    # the cushion-plant bog was entered in metres; nothing but grass grows up there
    x[331, 0] = 4210.0
    n[331] = torch.tensor([300.0, 0.0, 0.0, 0.0, 0.0])

    model = TransferFunction()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.08, betas=(0.8, 0.98))
    order = list(range(480))
    random.shuffle(order)
    order.remove(331)
    order.insert(26 * SITES_PER_BATCH + 5, 331)

    for k, (site, counts) in enumerate(batches(x, n, order), start=1):
        loss = g_statistic(counts, model(site))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(f"batch {k:02d}  G = {loss.item():.6f}")
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
