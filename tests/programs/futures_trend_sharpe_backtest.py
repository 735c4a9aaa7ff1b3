import argparse
import math

import lightning as L
import numpy as np
import torch
import torch.nn as nn
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, TensorDataset

ANNUAL = math.sqrt(252)


def load_prices(n_days, n_assets, seed):
    """Synthetic settlement prices. Days without a session carry the last settlement."""
    rng = np.random.default_rng(seed)
    vol = rng.uniform(0.006, 0.02, n_assets)
    trend = np.cumsum(rng.normal(0, 0.0006, (n_days, n_assets)), 0)
    trend -= trend.mean(0)
    ret = 0.1 * trend + rng.normal(0, 1, (n_days, n_assets)) * vol
    closed = np.zeros(n_days, bool)
    closed[rng.choice(n_days, 12, replace=False)] = True
    closed[610:655] = True
    ret[closed] = 0.0
    return 100 * np.exp(np.cumsum(ret, 0))


def make_windows(prices, lookback, hold):
    r = np.diff(np.log(prices), axis=0)
    scale = np.sqrt((r ** 2).mean(0))
    feats = []
    for span in (5, 10, 20):
        k = np.ones(span) / span
        feats.append(np.stack([np.convolve(r[:, i], k)[: len(r)] / scale[i] for i in range(r.shape[1])], -1))
    x = np.stack(feats, -1)
    xs, ys = [], []
    for t in range(lookback, len(r) - hold, hold):
        xs.append(x[t - 1: t - 1 + hold])
        ys.append(r[t: t + hold] / scale)
    return torch.tensor(np.stack(xs), dtype=torch.float32), torch.tensor(np.stack(ys), dtype=torch.float32)


class TrendModel(L.LightningModule):
    def __init__(self, lr=3e-3, cost=0.002, l1=1e-4):
        super().__init__()
        self.save_hyperparameters()
        self.signal = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1), nn.Tanh())

    def forward(self, x):
        return self.signal(x).squeeze(-1)

    def pnl(self, position, returns):
        gross = (position * returns).mean(-1)
        slippage = self.hparams.cost * position.abs().mean(-1) * returns.abs().mean(-1)
        return gross - slippage

    @staticmethod
    def sharpe(daily):
        mean, sd = daily.mean(dim=1), daily.std(dim=1)
        return ANNUAL * mean / sd

    def training_step(self, batch, batch_idx):
        x, r = batch
        position = self(x)
        daily = self.pnl(position, r)
        turnover = (position[:, 1:] - position[:, :-1]).abs().mean()
        loss = -self.sharpe(daily).mean() + self.hparams.l1 * turnover
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.98)}


class Report(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"{trainer.global_step:4d} {float(outputs['loss']):+.4f}", flush=True)


def run():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--assets", type=int, default=12)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    L.seed_everything(args.seed, verbose=False)
    x, r = make_windows(load_prices(1000, args.assets, args.seed), 20, 20)
    loader = DataLoader(TensorDataset(x, r), batch_size=3, shuffle=False)
    model = TrendModel()
    trainer = L.Trainer(max_epochs=args.epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Report()])
    trainer.fit(model, loader)
    print("final", float(sum(p.detach().abs().sum() for p in model.parameters())), flush=True)


if __name__ == "__main__":
    import logging
    import warnings

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    run()
