import pytorch_lightning as pl
import torch
from torch import nn
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint
from transformers import AutoModelForTokenClassification, get_linear_schedule_with_warmup


class NER(pl.LightningModule):
    def __init__(self, lr: float = 3e-5, warmup: int = 100, total: int = 5000):
        super().__init__()
        self.save_hyperparameters()
        self.model = AutoModelForTokenClassification.from_pretrained("bert-base-cased", num_labels=9)

    def training_step(self, batch, _):
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.01)
        sch = get_linear_schedule_with_warmup(opt, self.hparams.warmup, self.hparams.total)
        return [opt], [{"scheduler": sch, "interval": "step"}]


if __name__ == "__main__":
    from data import ConllData

    trainer = pl.Trainer(accelerator="gpu", devices=2, strategy="ddp", precision="bf16-mixed", max_steps=5000,
                         gradient_clip_val=1.0, callbacks=[LearningRateMonitor(), ModelCheckpoint(monitor="val_f1", mode="max")])
    trainer.fit(NER(), ConllData())
