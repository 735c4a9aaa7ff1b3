# Which tributary did the sand of a delta come from?  Mineral spectra -> shares of five tributaries.
import dataclasses
import torch


@dataclasses.dataclass
class Sample:
    spectrum: torch.Tensor
    share: torch.Tensor
    flowing: torch.Tensor      # 0 where a tributary had dried up in that year


class Delta(torch.utils.data.Dataset):
    def __init__(self, n=112, seed=9):
        g = torch.Generator().manual_seed(seed)
        ends = torch.rand(5, 14, generator=g)
        self.items = []
        for k in range(n):
            flowing = torch.ones(5)
            if k in (39, 90):
                flowing[2] = 0
            share = torch.rand(5, generator=g).pow(2) * flowing + 0.02 * flowing
            share = share / share.sum()
            noise = 0.02 * torch.randn(14, generator=g)
            self.items.append(Sample(share @ ends + noise, share, flowing))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


def stack(samples):
    return Sample(*(torch.stack([getattr(s, f.name) for s in samples]) for f in dataclasses.fields(Sample)))


class Unmixer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.read = torch.nn.Sequential(torch.nn.Linear(14, 24), torch.nn.SiLU(), torch.nn.LayerNorm(24))
        self.split = torch.nn.Linear(24, 5)

    def forward(self, spectrum, flowing):
        weight = self.split(self.read(spectrum)).softmax(-1) * flowing
        return weight / weight.sum(-1, keepdim=True)


class Divergence(torch.nn.Module):
    def forward(self, guess, share):
        return (torch.xlogy(share, share) - torch.xlogy(share, guess)).sum(-1).mean()


class Session:
    def __init__(self):
        torch.manual_seed(2)
        self.model, self.criterion = Unmixer(), Divergence()
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=2e-3, momentum=0.5)
        self.listeners = []

    def run(self, loader):
        for number, batch in enumerate(loader, 1):
            loss = self.criterion(self.model(batch.spectrum, batch.flowing), batch.share)
            self.optimizer.zero_grad(set_to_none=False)
            loss.backward()
            self.optimizer.step()
            for hear in self.listeners:
                hear(number, loss.detach())


if __name__ == "__main__":
    session = Session()
    session.listeners.append(lambda n, value: print(f"batch {n} kl {value.item():.17g}"))
    session.run(torch.utils.data.DataLoader(Delta(), batch_size=7, collate_fn=stack))
    print(torch.cat([p.detach().reshape(-1) for p in session.model.parameters()]).sum().item())
