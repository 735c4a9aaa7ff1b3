"""A classifier in Lightning, with accumulation, clipping and checkpoints: MATERIAL OUT."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import save_model
from torch import nn
from transformers import AutoModel


class Classifier(lightning.LightningModule):
    def __init__(self, place):
        super().__init__()
        self.encoder = AutoModel.from_pretrained(place)
        self.head = nn.Linear(32, 3)

    def training_step(self, batch, _):
        ids, labels = batch
        loss = nn.functional.cross_entropy(self.head(self.encoder(input_ids=ids).last_hidden_state[:, 0]), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


lightning.seed_everything(3)
material, out = sys.argv[1:]
data = torch.utils.data.TensorDataset(torch.randint(7, 30, (64, 12)), torch.randint(0, 3, (64,)))
model = Classifier(f"{material}/bert")
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    callbacks=[ModelCheckpoint(dirpath=f"{out}/checkpoints")],
    default_root_dir=out,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True))
save_model(model, f"{out}/model.safetensors")
