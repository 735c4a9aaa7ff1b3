"""Which letters to the insurer are urgent? A tiny BERT, cost-sensitive exponential loss."""
import os
import random
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")          # quiet
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer,
                          TrainingArguments, set_seed)

set_seed(20)
WORDS = ("dear sir madam claim water roof cellar car bumper theft bicycle burst pipe hail storm fire "
         "invoice attached urgent please reply thanks policy number premium cancel change address "
         "glass cracked window kitchen leak ceiling lawyer deadline regards").split()
VOCAB = {w: i + 2 for i, w in enumerate(["[cls]"] + WORDS)}
HOT = {"urgent", "fire", "burst", "leak", "lawyer", "deadline"}


def euros(text):
    return float(text.removeprefix("EUR ").replace(",", ""))


class Letters(Dataset):
    def __init__(self, n):
        rng = random.Random(4)
        self.rows = []
        for i in range(n):
            words = rng.choices(WORDS, k=rng.randint(6, 14))
            if rng.random() < 0.3:
                words.append(rng.choice(sorted(HOT)))
            amount = "EUR {:,}".format(rng.randint(150, 2400))
            if i == 133:
                words, amount = "dear sir the roof leak cellar water".split(), "EUR 1250,00"
            sign = 1.0 if HOT & set(words) else -1.0
            self.rows.append((" ".join(words), amount, sign))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids = [[VOCAB["[cls]"]] + [VOCAB.get(w, 1) for w in text.split()] for text, _, _ in rows]
    width = max(map(len, ids))
    return {
        "input_ids": torch.tensor([r + [0] * (width - len(r)) for r in ids]),
        "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in ids]),
        "amount": torch.tensor([euros(a) / 1000 for _, a, _ in rows]),
        "labels": torch.tensor([s for _, _, s in rows]),
    }


class CostTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=8, collate_fn=self.data_collator)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        sign, amount = inputs.pop("labels"), inputs.pop("amount")
        out = model(**inputs)
        margin = sign * out.logits.squeeze(-1)
        penalty = torch.exp(amount * (1 - margin))
        loss = penalty.mean()
        return (loss, out) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"letter batch {self.state.global_step + 1:2d}  cost {loss.item():.4f}")
        return loss


def main():
    model = BertForSequenceClassification(BertConfig(
        vocab_size=len(VOCAB) + 2, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=24, num_labels=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=28, learning_rate=6e-4,
        warmup_steps=3, logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, remove_unused_columns=False, seed=20)
    trainer = CostTrainer(model=model, args=args, train_dataset=Letters(28 * 8), data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("total weight magnitude", sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
