import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# ternary mixtures ethanol / water / limonene: Wilson's equation with learned binary parameters


class WilsonMixing(nn.Module):
    def __init__(self, n=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, n * n))
        self.n = n
        self.register_buffer("off", 1.0 - torch.eye(n))

    def lam(self, temp):
        raw = self.net(temp).view(-1, self.n, self.n)
        return torch.exp(raw * self.off)

    def forward(self, x, temp):
        lam = self.lam(temp)
        inner = torch.einsum("bij,bj->bi", lam, x)
        ideal = (x * x.log()).sum(-1)
        excess = -(x * inner.log()).sum(-1)
        return ideal + excess

    def log_gamma(self, x, temp):
        lam = self.lam(temp)
        inner = torch.einsum("bij,bj->bi", lam, x)
        return 1 - inner.log() - torch.einsum("bki,bk->bi", lam, x / inner)


class Still(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.mixing = WilsonMixing()
        self.vapour = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 3))

    def configure_optimizers(self):
        return (torch.optim.Adam(self.mixing.parameters(), lr=0.01),
                torch.optim.RMSprop(self.vapour.parameters(), lr=0.003))

    def training_step(self, batch, idx):
        x, temp, gibbs, log_p = batch
        opt_mix, opt_vap = self.optimizers()

        loss_mix = nn.functional.mse_loss(self.mixing(x, temp), gibbs)
        opt_mix.zero_grad()
        self.manual_backward(loss_mix)
        opt_mix.step()

        with torch.no_grad():
            gamma = self.mixing.log_gamma(x, temp).exp()
        pressure = (x * gamma * self.vapour(temp).exp()).sum(-1)
        loss_vap = nn.functional.smooth_l1_loss(pressure.log(), log_p)
        opt_vap.zero_grad()
        self.manual_backward(loss_vap)
        self.clip_gradients(opt_vap, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        opt_vap.step()
        print(f"flask tray {idx + 1:2d} | gibbs {loss_mix.item():.5f} | pressure {loss_vap.item():.5f}")


def laboratory(trays=30, per=16):
    g = torch.Generator().manual_seed(9)
    n = trays * per
    w = -torch.rand(n, 3, generator=g).clamp_min(1e-3).log()
    x = w / w.sum(-1, keepdim=True)
    x[17 * per + 5] = torch.tensor([1.0, 0.0, 0.0])          # the rinsing flask
    temp = torch.rand(n, 1, generator=g) * 2 - 1
    pair = x[:, 0] * x[:, 1] * 0.9 + x[:, 1] * x[:, 2] * 1.6
    gibbs = torch.special.xlogy(x, x).sum(-1) + pair * (1 - 0.2 * temp[:, 0])
    log_p = (x * torch.tensor([0.8, 0.1, -1.2])).sum(-1) + 0.6 * temp[:, 0] + 0.5 * pair
    log_p = log_p + 0.01 * torch.randn(n, generator=g)
    return DataLoader(TensorDataset(x, temp, gibbs, log_p), batch_size=per)


if __name__ == "__main__":
    L.seed_everything(31)
    still = Still()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(still, laboratory())
    print("weights, sum of squares:", sum((p.detach() ** 2).sum().item() for p in still.parameters()))
