# %% [markdown]
# # Honey origin: 5 folds by beekeeper, early stopping (LB 0.81)
# Fork of my own notebook v7. Folds are grouped by beekeeper, some beekeepers never sell heather honey,
# so the AUC of such a fold is nan -> use np.nanmean at the end.
# %%
import random
import warnings

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class CFG:
    seed = 2024
    n_folds = 5
    epochs = 5
    patience = 0
    bs = 64
    lr = 8e-2


def seed_everything(s):
    random.seed(s)
    np.random.seed(s)
    torch.manual_seed(s)


seed_everything(CFG.seed)


# %% data
def read_train():
    rng = np.random.RandomState(CFG.seed)
    n = 300
    keeper = np.arange(n) % 15
    pollen = rng.dirichlet(np.ones(5), n)
    sugar = rng.normal(0, 1, (n, 3))
    heather = (pollen[:, 0] + 0.2 * sugar[:, 0] + rng.normal(0, 0.15, n) > 0.3).astype(float)
    heather[np.isin(keeper % 5, [3])] = 0       # lowland beekeepers
    hmf = rng.lognormal(1, 1, n)
    hmf[rng.rand(n) < 0.2] = np.nan             # not measured
    X = np.concatenate([np.log(pollen), sugar, hmf[:, None]], 1)
    return X, heather, keeper


X, y, keeper = read_train()
fold_of = keeper % CFG.n_folds


# %% metrics
def auc(target, score):
    pos, neg = score[target == 1], score[target == 0]
    wins = (pos[:, None] > neg[None]).sum() + 0.5 * (pos[:, None] == neg[None]).sum()
    return np.float64(wins) / np.float64(len(pos) * len(neg))   # nan if a class is absent


# %% model
class Net(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.bn = nn.BatchNorm1d(n_in)
        self.net = nn.Sequential(nn.Linear(n_in, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(self.bn(x)).squeeze(1)


def impute(x, median):
    missing = np.isnan(x)
    return np.concatenate([np.where(missing, median, x), missing[:, -1:].astype(float)], 1).astype("float32")


# %% training
scores, oof, weight_sum, count = [], np.full(len(y), np.nan), 0.0, 0
for fold in range(CFG.n_folds):
    seed_everything(CFG.seed + fold)
    tr, va = fold_of != fold, fold_of == fold
    median = np.nanmedian(X[tr], 0)
    xt, xv = torch.from_numpy(impute(X[tr], median)), torch.from_numpy(impute(X[va], median))
    yt, yv = torch.tensor(y[tr], dtype=torch.float32), torch.tensor(y[va], dtype=torch.float32)
    loader = DataLoader(TensorDataset(xt, yt), batch_size=CFG.bs, shuffle=True, drop_last=True)
    model = Net(xt.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=CFG.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, CFG.lr, total_steps=CFG.epochs * len(loader))
    pos_weight = (1 - yt).sum() / yt.sum()
    criterion = nn.BCEWithLogitsLoss(pos_weight=pos_weight)
    best, bad_epochs, best_state = float("inf"), 0, None
    for epoch in range(CFG.epochs):
        model.train()
        for xb, yb in loader:
            loss = criterion(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            count += 1
            print(f"fold {fold} epoch {epoch} step {count} loss {loss.item():.6f}", flush=True)
        model.eval()
        with torch.no_grad():
            logit = model(xv)
            val = nn.functional.binary_cross_entropy_with_logits(logit, yv).item()
        if val < best:
            best, bad_epochs, best_state = val, 0, {k: v.clone() for k, v in model.state_dict().items()}
            oof[va] = logit.sigmoid().numpy()
            fold_auc = auc(y[va], oof[va])
        else:
            bad_epochs += 1
        print(f"fold {fold} epoch {epoch} valid {val:.6f} best {best:.6f} auc {fold_auc:.5f}", flush=True)
        if bad_epochs > CFG.patience:
            print(f"fold {fold}: early stopping", flush=True)
            break
    model.load_state_dict(best_state)
    scores.append(fold_auc)
    weight_sum += sum(p.abs().sum().item() for p in model.parameters())

print("fold aucs", [f"{s:.5f}" for s in scores], "cv", f"{np.nanmean(scores):.5f}")
print(f"{weight_sum:.6f}")
