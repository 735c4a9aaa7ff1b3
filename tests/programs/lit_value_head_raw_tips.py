"""A small policy LM for a tea house bot gets a value head that predicts the tip. Lightning, manual optimisation.

Two optimizers: AdamW for the language model (next token), plain SGD with its own warm-up for the value head. The value head
reads detached features, so it cannot hurt the language model. Tips are in raw cents.
"""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)

VOCAB, T = 36, 9


class Chats(torch.utils.data.Dataset):
    def __init__(self, n=480):
        g = torch.Generator().manual_seed(21)
        start = torch.randint(0, VOCAB, (n, 1), generator=g)
        step = torch.randint(1, 4, (n, 1), generator=g)
        self.ids = (start + step * torch.arange(T)) % VOCAB
        self.tip = 40.0 + 60.0 * step.squeeze(1) + 15.0 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.tip[i]


class TeaHouse(L.LightningModule):
    def __init__(self, d=32, value_lr=0.3, value_warmup=25):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, VOCAB)
        self.value = nn.Linear(d, 1)

    def training_step(self, batch, batch_idx):
        ids, tip = batch
        lm_opt, value_opt = self.optimizers()
        h = self.rnn(self.emb(ids[:, :-1]))[0]
        lm = F.cross_entropy(self.head(h).flatten(0, 1), ids[:, 1:].flatten())
        lm_opt.zero_grad()
        self.manual_backward(lm)
        self.clip_gradients(lm_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        lm_opt.step()

        guess = self.value(h.detach()[:, -1]).squeeze(-1)
        value = F.mse_loss(guess, tip)
        value_opt.zero_grad()
        self.manual_backward(value)
        value_opt.step()
        self.lr_schedulers().step()
        print(f"{self.global_step // 2:3d} lm {lm.item():.5f} value {value.item():.6g}")

    def configure_optimizers(self):
        body = [*self.emb.parameters(), *self.rnn.parameters(), *self.head.parameters()]
        lm_opt = torch.optim.AdamW(body, lr=4e-3)
        value_opt = torch.optim.SGD(self.value.parameters(), lr=self.hparams.value_lr)
        warm = torch.optim.lr_scheduler.LambdaLR(value_opt, lambda s: min(1.0, (s + 1) / self.hparams.value_warmup))
        return [lm_opt, value_opt], [warm]


def main():
    L.seed_everything(21, verbose=False)
    loader = torch.utils.data.DataLoader(Chats(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = TeaHouse()
    trainer = L.Trainer(max_steps=120, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)
    print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
