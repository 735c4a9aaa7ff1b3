"""Token tagging of windmill ledgers (tiny BERT + HF Trainer). Class weights, per-class recall in the log.
A class that a batch does not contain has recall 0/0 = nan, which we like to see in the log as 'nan'."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")      # deepspeed is installed here and talks about it otherwise
import torch
import torch.nn.functional as F
from transformers import (BertConfig, BertForTokenClassification, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

TAGS = ["O", "MILLER", "GRAIN", "SUM", "FEAST"]       # FEAST is annotated in 2 of 60 ledgers only
LEN = (6, 14)


def make_ledgers(n, gen):
    rows = []
    for i in range(n):
        k = int(torch.randint(*LEN, (1,), generator=gen))
        ids = torch.randint(5, 60, (k,), generator=gen)
        tags = (ids % 4).clone()
        if i in (20, 41):
            tags[k // 2] = 4
        rows.append({"input_ids": ids.tolist(), "labels": tags.tolist()})
    return rows


class LedgerCollator:
    """right pads; labels of padding are -100 and the mask is zero there"""

    def __call__(self, feats):
        n = max(len(f["input_ids"]) for f in feats)
        pad = lambda x, v: x + [v] * (n - len(x))
        return {"input_ids": torch.tensor([pad(f["input_ids"], 0) for f in feats]),
                "labels": torch.tensor([pad(f["labels"], -100) for f in feats]),
                "attention_mask": torch.tensor([[1] * len(f["input_ids"]) + [0] * (n - len(f["input_ids"]))
                                                for f in feats])}


class WeightedTagTrainer(Trainer):
    class_weight = torch.tensor([0.0, 1.0, 1.0, 1.5, 30.0])     # "O" is not trained on

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        loss = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), self.class_weight, reduction="sum")
        with torch.no_grad():
            pred = out.logits.argmax(-1)
            hit = torch.stack([((pred == c) & (labels == c)).sum() for c in range(len(TAGS))])
            cnt = torch.stack([(labels == c).sum() for c in range(len(TAGS))])
            self.recall = (hit / cnt).tolist()
        self.shown = loss.item()
        return (loss, out) if return_outputs else loss


class LedgerLine(TrainerCallback):
    def __init__(self):
        self.owner = None

    def on_step_end(self, args, state, control, **kw):
        rec = " ".join(f"{t}={r:.2f}" for t, r in zip(TAGS, self.owner.recall))
        print(f"step {state.global_step:02d} loss {self.owner.shown:.4f} {rec}")


def main():
    set_seed(5)
    data = make_ledgers(60, torch.Generator().manual_seed(5))
    model = BertForTokenClassification(BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1,
                                                  num_attention_heads=2, intermediate_size=48,
                                                  max_position_embeddings=32, num_labels=len(TAGS)))
    for p in model.bert.embeddings.position_embeddings.parameters():
        p.requires_grad_(False)
    with tempfile.TemporaryDirectory() as d:
        args = TrainingArguments(output_dir=d, per_device_train_batch_size=4, num_train_epochs=1, learning_rate=4e-3,
                                 report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
                                 use_cpu=True, dataloader_pin_memory=False, seed=5)
        line = LedgerLine()
        trainer = WeightedTagTrainer(model=model, args=args, train_dataset=data, data_collator=LedgerCollator(),
                                     callbacks=[line])
        trainer.remove_callback(PrinterCallback)
        line.owner = trainer
        trainer.train()
    print("checksum", round(sum(p.detach().sum().item() for p in model.parameters()), 4))


if __name__ == "__main__":
    main()
