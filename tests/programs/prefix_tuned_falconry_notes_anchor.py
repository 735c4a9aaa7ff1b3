"""Prefix tuning of a frozen tiny GPT on falconry notes, as a Lightning module. From the second epoch on, the prefix is held near
the one that the epoch before left behind (an L2 distance, not its square, so that it is a trust region of sorts)."""
import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

NOTES = ("the tiercel mantled over the lure and fed up well . weight at dawn was low so no flight in wind . "
         "the peregrine waited on above the dog and stooped at the grouse . jesses were waxed and the bells changed . ") * 40


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, prefix):
        b, t, w = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        pk, pv = prefix.unsqueeze(0).expand(b, -1, -1, -1).unbind(1)
        k, v = torch.cat([pk, k], 1), torch.cat([pv, v], 1)
        split = lambda z: z.view(b, -1, self.heads, w // self.heads).transpose(1, 2)
        mask = torch.ones(t, k.shape[1], dtype=torch.bool).tril(pk.shape[1])
        a = F.scaled_dot_product_attention(split(q), split(k), split(v), attn_mask=mask)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, w))
        return x + self.mlp(self.ln2(x))


class PrefixGPT(L.LightningModule):
    def __init__(self, vocab, width=32, layers=2, rows=4, hold=0.05):
        super().__init__()
        self.hold = hold
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, vocab)
        self.requires_grad_(False)
        self.prefix = nn.Parameter(torch.randn(layers, 2, rows, width) * 0.2)
        self.head.bias.requires_grad_(True)
        self.register_buffer("anchor", torch.zeros_like(self.prefix))
        self.anchored = False

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block, prefix in zip(self.blocks, self.prefix):
            x = block(x, prefix)
        return self.head(x)

    def on_train_epoch_start(self):
        if self.current_epoch > 0:
            self.anchor.copy_(self.prefix.detach())
            self.anchored = True

    def drift(self):
        return torch.sqrt((self.prefix - self.anchor).pow(2).sum())

    def training_step(self, batch, index):
        (ids,) = batch
        loss = F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        if self.anchored:
            loss = loss + self.hold * self.drift()
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        print(f"epoch {self.current_epoch} batch {index} loss {outputs['loss'].item():.6f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.02)


def windows(ids, length=24):
    count = (len(ids) - 1) // length
    return torch.stack([ids[i * length: i * length + length + 1] for i in range(count)])


def main():
    L.seed_everything(4, verbose=False)
    words = sorted(set(NOTES.split()))
    ids = torch.tensor([words.index(w) for w in NOTES.split()])
    data = windows(ids)[:60]
    loader = DataLoader(TensorDataset(data), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(1))
    module = PrefixGPT(len(words))
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(module, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in module.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
