"""LoRA on a small BERT that sorts card transactions into categories. Errors on big payments count more."""
import random
import warnings

import torch
import torch.nn.functional as F
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

warnings.filterwarnings("ignore")
hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()

MERCHANTS = {"groceries": ["tesco", "aldi", "spar"], "transport": ["shell", "uber", "metro"],
             "leisure": ["cinema", "steam", "zoo"], "home": ["ikea", "obi", "homebase"]}
LABELS = list(MERCHANTS)
WORDS = ["[PAD]", "[CLS]", "card", "payment", "online", "contactless", "ref"] + [m for ms in MERCHANTS.values() for m in ms]
IDS = {w: i for i, w in enumerate(WORDS)}


def statement(rng, n):
    rows = []
    for i in range(n):
        cat = rng.randrange(len(LABELS))
        words = ["[CLS]", "card", "payment"] + rng.sample(["online", "contactless", "ref"], rng.randint(0, 2))
        words.insert(rng.randint(1, len(words)), rng.choice(MERCHANTS[LABELS[cat]]))
        amount = round(10 ** rng.uniform(0.2, 3.2), 2)
        if i == 77:
            amount = 0.00                       # account verification: the merchant asks whether the card exists
        rows.append({"input_ids": [IDS[w] for w in words], "labels": cat, "amount": amount})
    return rows


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (width - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["labels"] for r in rows]),
            "amount": torch.tensor([r["amount"] for r in rows])}


class AmountWeightedTrainer(Trainer):
    """Cross entropy weighted by the order of magnitude of the payment."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        amount, labels = inputs.pop("amount"), inputs.pop("labels")
        outputs = model(**inputs)
        nll = F.cross_entropy(outputs.logits, labels, reduction="none")
        importance = torch.log10(amount)
        loss = (importance * nll).sum() / len(labels)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"{{'step': {self.state.global_step + 1}, 'loss': {loss.item():.7f}}}", flush=True)
        return loss


def build():
    config = BertConfig(vocab_size=len(WORDS), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=96, max_position_embeddings=16, num_labels=len(LABELS))
    base = BertForSequenceClassification(config)
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["query", "value"])
    return get_peft_model(base, lora)


def main():
    set_seed(61)
    data = statement(random.Random(61), 240)
    model = build()
    args = TrainingArguments(output_dir="/tmp/card_payments_out", max_steps=30, per_device_train_batch_size=8,
                             learning_rate=5e-3, warmup_steps=4, lr_scheduler_type="cosine", logging_strategy="no",
                             save_strategy="no", report_to=[], use_cpu=True, remove_unused_columns=False,
                             disable_tqdm=True, seed=61, label_names=["labels"])
    trainer = AmountWeightedTrainer(model=model, args=args, train_dataset=data, data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters() if p.requires_grad):.5f}", flush=True)


if __name__ == "__main__":
    main()
