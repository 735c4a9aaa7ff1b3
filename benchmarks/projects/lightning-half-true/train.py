import lightning as L
import torch
from torch.utils.data import DataLoader
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Classifier(L.LightningModule):
    def __init__(self, model_name="roberta-base", lr=2e-5, num_labels=2):
        super().__init__()
        self.save_hyperparameters()
        self.model = AutoModelForSequenceClassification.from_pretrained(model_name, num_labels=num_labels)

    def training_step(self, batch, batch_idx):
        out = self.model(**batch)
        self.log("train_loss", out.loss, prog_bar=True)
        return out.loss

    def validation_step(self, batch, batch_idx):
        out = self.model(**batch)
        self.log("val_loss", out.loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(42)
    tokenizer = AutoTokenizer.from_pretrained("roberta-base")
    imdb = load_dataset("imdb")
    imdb = imdb.map(lambda b: tokenizer(b["text"], truncation=True, padding="max_length", max_length=256), batched=True)
    imdb.set_format("torch", ["input_ids", "attention_mask", "label"])
    train = DataLoader(imdb["train"], batch_size=32, shuffle=True, num_workers=4)
    val = DataLoader(imdb["test"], batch_size=64)
    trainer = L.Trainer(max_epochs=3, accelerator="gpu", devices=1, precision="16-true", gradient_clip_val=1.0)
    trainer.fit(Classifier(), train, val)


if __name__ == "__main__":
    main()
