"""Cox regression on mini-batches of a follow-up study: the mean over the patients with an event."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(31)
torch.set_num_threads(1)


class FollowUp(Dataset):
    """Patients in the order of enrolment; the last centres enrolled late, and saw few events yet."""

    def __init__(self, n=192):
        g = torch.Generator().manual_seed(77)
        self.x = torch.randn(n, 7, generator=g)
        hazard = (0.8 * self.x[:, 0] - 0.5 * self.x[:, 1]).exp()
        self.time = torch.empty(n).exponential_(1.0, generator=g) / hazard
        censor = torch.empty(n).exponential_(0.5, generator=g)
        self.event = (self.time < censor).float()
        self.event[128:144] = 0.0                              # one centre was opened last week
        self.time = torch.minimum(self.time, censor)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.time[i], self.event[i]


class DeepSurv(nn.Module):
    def __init__(self):
        super().__init__()
        self.risk = nn.Sequential(nn.Linear(7, 24), nn.SELU(), nn.Dropout(0.1), nn.Linear(24, 1))

    def forward(self, x):
        return self.risk(x).squeeze(-1)

    def training_step(self, batch):
        x, time, event = batch
        order = time.argsort(descending=True)
        score, event = self(x)[order], event[order]
        at_risk = torch.logcumsumexp(score, 0)
        ranking = self.partial_likelihood(score, at_risk, event)
        return ranking + 1e-3 * sum(p.pow(2).sum() for p in self.parameters())

    @staticmethod
    def partial_likelihood(score, at_risk, event):
        observed = event.bool()
        return -(score - at_risk)[observed].mean()


def fit(epochs=3):
    model = DeepSurv()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(FollowUp(), batch_size=16, shuffle=False)
    step = 0
    for epoch in range(epochs):
        for batch in loader:
            step += 1
            opt.zero_grad()
            loss = model.training_step(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            print(f"epoch {epoch} step {step:02d} loss {loss.item():.4f}")
    return model


if __name__ == "__main__":
    trained = fit()
    print("finite:", int(all(torch.isfinite(p).all() for p in trained.parameters())))
