import logging
import warnings
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import copy
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Experts(nn.Module):
    def __init__(self, d, n, k):
        super().__init__()
        self.k, self.n = k, n
        self.router = nn.Linear(d, n, bias=False)
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(n))
        self.register_buffer("load", torch.full((n,), float("nan")), persistent=False)

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        r = self.router(flat)
        if self.training:
            r = r + 0.3 * torch.randn_like(r)
        kept = torch.full_like(r, float("-inf"))
        top, idx = r.topk(self.k, dim=-1)
        gate = kept.scatter(-1, idx, top).softmax(-1)
        out = torch.zeros_like(flat)
        for e, f in enumerate(self.ff):
            hit = (idx == e).any(-1).nonzero()[:, 0]
            out = out.index_add(0, hit, f(flat[hit]) * gate[hit, e, None])
        self.load = (gate > 0).float().mean(0).detach()
        z = torch.logsumexp(r, -1).square().mean()
        bal = self.n * (gate.mean(0) * r.softmax(-1).mean(0)).sum()
        return out.view_as(x), 1e-3 * z + 1e-2 * bal


class Yodel(L.LightningModule):
    def __init__(self, v=12, d=24):
        super().__init__()
        self.automatic_optimization = False
        self.emb = nn.Embedding(v, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.moe = Experts(d, 6, 2)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, v)
        self._ema = [None]

    @property
    def routers(self):
        return list(self.moe.router.parameters())

    def forward(self, x):
        h, _ = self.gru(self.emb(x))
        y, aux = self.moe(h)
        return self.out(self.norm(h + y)), aux

    def configure_optimizers(self):
        ids = {id(p) for p in self.routers}
        body = [p for p in self.parameters() if id(p) not in ids]
        return torch.optim.AdamW(body, lr=6e-3), torch.optim.SGD(self.routers, lr=0.05, momentum=0.9)

    def training_step(self, batch, i):
        (x,) = batch
        logits, aux = self(x[:, :-1])
        lm = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), label_smoothing=0.05)
        a, b = self.optimizers()
        self.manual_backward(lm + aux)
        self.clip_gradients(a, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        a.step()
        a.zero_grad()
        if i % 2:                       # the router sees two batches
            b.step()
            b.zero_grad()
        with torch.no_grad():
            now = {k: v.clone() for k, v in self.state_dict().items()}
            if self._ema[0] is None:
                self._ema[0] = now
            else:
                for k, v in self._ema[0].items():
                    v.lerp_(now[k], 0.1)
        print(f"{i} lm {lm.item():.4f} aux {aux.item():.4f} busiest {self.moe.load.max().item():.3f}", flush=True)

    def on_train_end(self):
        with torch.no_grad():
            twin = copy.deepcopy(self.state_dict())
            self.load_state_dict(self._ema[0])
            self.load_state_dict(twin)


L.seed_everything(6, verbose=False)
start = torch.randint(12, (16 * 28, 1))
jump = torch.randint(1, 4, (16 * 28, 1))
songs = (start + jump * torch.arange(13) + 5 * (torch.arange(13) % 3 == 2)) % 12
L.Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
          enable_model_summary=False).fit(Yodel(), DataLoader(TensorDataset(songs), batch_size=16))
