import logging
import warnings

warnings.filterwarnings("ignore")
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
MASK, VOCAB, WIDTH = 1, 20, 10


def packets(count):
    g = torch.Generator().manual_seed(9)
    kind = torch.randint(0, 6, (count, 1), generator=g)
    place = torch.arange(WIDTH)
    return 2 + (kind * 3 + place * (1 + kind % 2)) % (VOCAB - 2)


class SeedPackets(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        small = dict(vocab_size=VOCAB, embedding_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                     intermediate_size=32, max_position_embeddings=WIDTH, hidden_dropout_prob=0.0,
                     attention_probs_dropout_prob=0.0)
        self.writer = ElectraForMaskedLM(ElectraConfig(**small))
        self.reader = ElectraForPreTraining(ElectraConfig(**{**small, "hidden_size": 32, "num_hidden_layers": 2}))
        self.noise = torch.Generator().manual_seed(4)

    def configure_optimizers(self):
        return (torch.optim.Adam(self.writer.parameters(), lr=1e-2),
                torch.optim.Adam(self.reader.parameters(), lr=2e-3))

    def corrupt(self, logits, ids, hidden):
        u = torch.rand(logits.shape, generator=self.noise)
        gumbel = -torch.log(-torch.log(u))
        logits = logits.detach().clone()
        logits[..., :2] = -torch.inf
        return torch.where(hidden, (logits + gumbel).argmax(-1), ids)

    def training_step(self, ids, batch_idx):
        writer_opt, reader_opt = self.optimizers()
        hidden = torch.rand(ids.shape, generator=self.noise) < 0.08
        logits = self.writer(ids.masked_fill(hidden, MASK)).logits
        each = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
        writer_loss = (each * hidden).sum() / hidden.sum().clamp(min=1)

        forged = self.corrupt(logits, ids, hidden)
        replaced = forged != ids
        verdict = self.reader(forged).logits
        reader_loss = F.binary_cross_entropy_with_logits(verdict, replaced.float())

        for opt, loss in ((writer_opt, writer_loss), (reader_opt, reader_loss)):
            opt.zero_grad()
            self.manual_backward(loss)
            opt.step()

        caught = ((verdict > 0) & replaced).sum() / replaced.sum()
        print(f"{batch_idx + 1:02d} writer {writer_loss.item():.4f} reader {reader_loss.item():.4f} "
              f"hidden {int(hidden.sum())} caught {caught.item():.2f}")


class Farewell(L.Callback):
    def on_train_end(self, trainer, module):
        total = sum(p.detach().abs().sum() for p in module.parameters())
        print("absolute weights at the end", f"{total.item():.3f}")


def fit():
    L.seed_everything(2)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Farewell()])
    trainer.fit(SeedPackets(), DataLoader(packets(4 * 36), batch_size=4))


if __name__ == "__main__":
    fit()
