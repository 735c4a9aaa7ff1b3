import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

CARRIERS = 5


class SpotMarket(torch.nn.Module):
    """Each carrier quotes; a shipper pays (almost) the lowest quote. Money in hundreds of euros."""

    def __init__(self):
        super().__init__()
        self.quote = torch.nn.Sequential(
            torch.nn.Linear(6, 20), torch.nn.GELU(), torch.nn.Linear(20, CARRIERS))

    def forward(self, lane, sharpness):
        quotes = 4.6 + self.quote(lane)
        willing = torch.exp(-sharpness * quotes)
        return -torch.log(willing.sum(-1)) / sharpness


def lanes(n):
    g = torch.Generator().manual_seed(77)
    lane = torch.rand(n, 6, generator=g) * 2 - 1     # km, pallets, weekday, fuel, backhaul, tail lift
    paid = 4.6 + 0.5 * lane[:, 0] + 0.3 * lane[:, 1] * lane[:, 3] - 0.2 * lane[:, 4].abs()
    return TensorDataset(lane, paid)


def train():
    set_seed(8)
    accelerator = Accelerator(cpu=True)
    model = SpotMarket()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(lanes(16 * 14), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    sharpness, n = 1.0, 0
    for epoch in range(3):
        for lane, paid in loader:
            n += 1
            if n > 40:
                break
            price = model(lane, sharpness)
            loss = torch.nn.functional.mse_loss(price, paid)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"epoch {epoch} step {n} sharpness {sharpness:g} loss {loss.item():.5f}")
            if n % 4 == 0:
                sharpness *= 2
    return model


if __name__ == "__main__":
    market = train()
    w = torch.cat([p.detach().flatten() for p in market.parameters()])
    print("norm of the market model:", round(float(w @ w), 5))
