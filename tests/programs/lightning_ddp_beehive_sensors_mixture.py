# Density model of a hive's sensor readings: given the hours that were logged so far, what comes next?
# Mixture of Gaussians on top of a small causal attention model. The log-likelihood of standardised
# readings goes below zero quickly, that is as it should be (densities, not probabilities).
import logging
import warnings

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("lightning.fabric").setLevel(logging.ERROR)

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HOURS, SENSORS, COMPONENTS = 12, 3, 4
NEG_INF = float("-inf")


def hive_weeks(n=288):
    g = torch.Generator().manual_seed(2024)
    hour = torch.arange(HOURS).float()
    phase = torch.rand(n, 1, generator=g) * 6.283
    temp = 34.5 + 0.05 * torch.sin(hour * 0.52 + phase) + 0.01 * torch.randn(n, HOURS, generator=g)
    hum = 240.0 + 8 * torch.cos(hour * 0.52 + phase) + torch.randn(n, HOURS, generator=g)
    press = 101325.0 + 300 * torch.randn(n, 1, generator=g) + 2 * torch.randn(n, HOURS, generator=g)
    x = torch.stack([temp, hum, press], -1)
    logged = torch.rand(n, HOURS, generator=g) > 0.3
    logged[:, 0] = True          # the keeper's own reading opens each record, so no row is empty
    x[~logged] = float("nan")    # gaps stay gaps until the module deals with them
    return TensorDataset(x, logged)


class CausalHive(nn.Module):
    def __init__(self, d=24, heads=2):
        super().__init__()
        self.heads = heads
        self.inp = nn.Linear(SENSORS, d)
        self.pos = nn.Parameter(torch.randn(HOURS, d) * 0.1)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, COMPONENTS * 3)

    def forward(self, x, logged):
        n, t, _ = x.shape
        h = self.inp(x) + self.pos
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(h).chunk(3, -1))
        bias = torch.zeros(n, 1, t, t)
        bias.masked_fill_(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), NEG_INF)
        bias.masked_fill_(~logged[:, None, None, :], NEG_INF)
        att = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias).softmax(-1)
        h = self.norm(h + self.out((att @ v).transpose(1, 2).reshape(n, t, -1)))
        return self.head(h).chunk(3, -1)


class HiveDensity(pl.LightningModule):
    def __init__(self, mean, std):
        super().__init__()
        self.net = CausalHive()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def training_step(self, batch, batch_idx):
        x, logged = batch
        x = torch.where(logged[..., None], (x - self.mean) / self.std, 0.0)
        logit, mu, raw = self.net(x, logged)
        target = x[:, 1:, 2:]
        scale = 1e-3 + nn.functional.softplus(raw[:, :-1])
        comp = torch.distributions.Normal(mu[:, :-1], scale).log_prob(target)
        nll = -torch.logsumexp(logit[:, :-1].log_softmax(-1) + comp, -1)
        loss = nll[logged[:, 1:]].mean()
        with torch.no_grad():   # skill within the hour 3 sub-group only; often empty, then NaN
            cold = logged[:, 3] & (x[:, 3, 0] < -1.25)
            skill = nll[:, 2][cold].mean()
        self.log("cold_skill", skill, sync_dist=True)
        return {"loss": loss, "skill": skill}

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.15, total_steps=26)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


class Ticker(pl.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        if trainer.is_global_zero:
            print(f"update {trainer.global_step:2d} nll {float(outputs['loss']):+.6f} "
                  f"cold {float(outputs['skill']):+.4f}", flush=True)


def main():
    pl.seed_everything(8, verbose=False)
    data = hive_weeks()
    x, logged = data.tensors
    seen = x[logged]
    module = HiveDensity(seen.mean(0), seen.std(0))
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2,
                         accumulate_grad_batches=3, gradient_clip_val=0.5, callbacks=[Ticker()],
                         logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    trainer.fit(module, DataLoader(data, batch_size=4, shuffle=True))
    if trainer.is_global_zero:
        print("done", trainer.global_step, "updates")


if __name__ == "__main__":
    main()
