"""TabTransformer for loan defaults. Blanks in the loan book are NaN in the matrix on purpose: each numeric
column has its own 'missing' embedding, so nothing is imputed."""
import dataclasses as dc
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


@dc.dataclass
class Config:
    numeric: int = 6
    cats: tuple = (5, 3, 9)
    dim: int = 24
    steps: int = 40
    batch: int = 12
    lr: float = 2e-3
    pretrain_until: int = 10


@dc.dataclass
class LoanRows:
    num: torch.Tensor     # with NaN where the branch left the field blank
    cat: torch.Tensor
    default: torch.Tensor

    def to(self, device):
        return LoanRows(**{k: v.to(device) for k, v in vars(self).items()})

    @property
    def blank(self):
        return torch.isnan(self.num)


class FeatureTokens(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(cfg.numeric, cfg.dim) * 0.2)
        self.shift = nn.Parameter(torch.zeros(cfg.numeric, cfg.dim))
        self.missing = nn.Parameter(torch.randn(cfg.numeric, cfg.dim) * 0.2)
        self.cats = nn.ModuleList(nn.Embedding(n, cfg.dim) for n in cfg.cats)
        self.cls = nn.Parameter(torch.zeros(1, 1, cfg.dim))

    def forward(self, rows, hide=None):
        gone = rows.blank if hide is None else rows.blank | hide
        x = torch.where(gone, torch.zeros_like(rows.num), rows.num)
        x = x.clamp(-1e6, 1e6)
        x = torch.sign(x) * torch.log1p(x.abs())
        tok = torch.where(gone[..., None], self.missing, x[..., None] * self.scale + self.shift)
        cat = torch.stack([e(rows.cat[:, j]) for j, e in enumerate(self.cats)], 1)
        return torch.cat([self.cls.expand(len(x), -1, -1), tok, cat], 1), x


class TabTransformer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = FeatureTokens(cfg)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(cfg.dim, 4, 48, dropout=0.0, batch_first=True, norm_first=True),
            2, enable_nested_tensor=False)
        self.risk = nn.Linear(cfg.dim, 1)
        self.refill = nn.Linear(cfg.dim, 1)

    def forward(self, rows, hide=None):
        tok, x = self.tokens(rows, hide)
        h = self.enc(tok)
        return self.risk(h[:, 0]).squeeze(-1), self.refill(h[:, 1:1 + x.shape[1]]).squeeze(-1)


def draw(cfg, g):
    num = torch.randn(cfg.batch, cfg.numeric, generator=g)
    num[:, 0] = torch.exp(11 + num[:, 0])               # balance, up to millions
    cat = torch.stack([torch.randint(0, n, (cfg.batch,), generator=g) for n in cfg.cats], 1)
    y = (num[:, 1] + 0.4 * cat[:, 1] > 1.6).float()
    blank = torch.rand(num.shape, generator=g) < 0.25
    num[:, 0][num[:, 0] > 4e5] = float("inf")           # the mainframe writes 9999999: read as infinite
    return LoanRows(num.masked_fill(blank, math.nan), cat, y)


def auc(score, y):
    pos, neg = score[y == 1], score[y == 0]
    return (pos[:, None] > neg[None]).float().mean().item()   # nan if there is no defaulter in the batch


def main(cfg=Config()):
    torch.manual_seed(8)
    g = torch.Generator().manual_seed(88)
    model = TabTransformer(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        rows = draw(cfg, g).to("cpu")
        if step <= cfg.pretrain_until or step % 5 == 0:
            # hide a field that is there, predict it
            hide = torch.rand(rows.num.shape, generator=g) < 0.2
            _, fill = model(rows, hide)
            known = hide & torch.isfinite(rows.num)
            goal = torch.sign(rows.num) * torch.log1p(rows.num.abs())
            loss, what, metric = F.mse_loss(fill[known], goal[known]), "refill", int(known.sum())
        else:
            logit, _ = model(rows)
            loss = F.binary_cross_entropy_with_logits(logit, rows.default)
            what, metric = "risk", auc(logit.detach(), rows.default)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:02d} {what:6s} {loss.item():.6f} {metric:.3f}")


if __name__ == "__main__":
    main()
