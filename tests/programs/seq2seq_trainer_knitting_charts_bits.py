"""Seq2SeqTrainer: knitting instructions -> chart rows.

The objective is the code length *saved* against a unigram coder, so a good model sits far below zero.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import math
import logging
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)      # deepspeed is chatty on stdout
import torch
import torch.nn.functional as F
from transformers import (PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config,
                          T5ForConditionalGeneration, TrainerCallback, set_seed)

SRC = ["<pad>", "</s>"] + "knit purl slip yarn over together cable left right two three four".split()
TGT = "- | o v / \\ x ^ 2 3".split()
OFFSET = len(SRC)
RULE = {"knit": "|", "purl": "-", "slip": "v", "yarn": "o", "together": "/", "cable": "x", "two": "2", "three": "3"}


def swatches(n):
    g = torch.Generator().manual_seed(55)
    rows = []
    for _ in range(n):
        words = [SRC[2 + int(k)] for k in torch.randint(0, 12, (int(torch.randint(4, 9, (1,), generator=g)),), generator=g)]
        chart = [OFFSET + TGT.index(RULE.get(w, "|")) for w in words]
        rows.append({"input_ids": [SRC.index(w) for w in words] + [1], "labels": chart + [1]})
    return rows


def collate(rows):
    s = max(len(r["input_ids"]) for r in rows)
    t = max(len(r["labels"]) for r in rows)
    return {
        "input_ids": torch.tensor([r["input_ids"] + [0] * (s - len(r["input_ids"])) for r in rows]),
        "attention_mask": torch.tensor([[1] * len(r["input_ids"]) + [0] * (s - len(r["input_ids"])) for r in rows]),
        "labels": torch.tensor([r["labels"] + [-100] * (t - len(r["labels"])) for r in rows]),
    }


class BitsSavedTrainer(Seq2SeqTrainer):
    cable_id = OFFSET + TGT.index("x")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        labels = inputs["labels"]
        flat = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.02,
                               reduction="sum")
        n = (labels != -100).sum()
        unigram = n * math.log(len(TGT))
        # recall on cables, for the log only; most batches have none and then it is 0/0
        cable = labels == self.cable_id
        self.cable_recall = ((out.logits.argmax(-1) == labels) & cable).sum() / cable.sum()
        loss = (flat - unigram) / math.log(2) / len(labels)
        return (loss, out) if return_outputs else loss


class HalveEncoder(TrainerCallback):
    """The encoder comes pre-trained in the real run: keep it slow, and let it rest altogether at first."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kw):
        factor = 0.0 if state.global_step < 6 else 0.5
        for p in model.encoder.block.parameters():
            if p.grad is not None:
                p.grad.mul_(factor)


class Log(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"{state.global_step:3d} bits {float(logs['loss']):+.5f} cable-recall {float(self.trainer.cable_recall):.3f}")


def main():
    set_seed(808)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=OFFSET + len(TGT), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
    with tempfile.TemporaryDirectory() as tmp:
        args = Seq2SeqTrainingArguments(
            output_dir=tmp, per_device_train_batch_size=3, max_steps=40, learning_rate=5e-3, warmup_steps=4,
            lr_scheduler_type="cosine", logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False, seed=808)
        log = Log()
        trainer = BitsSavedTrainer(model=model, args=args, train_dataset=swatches(60), data_collator=collate,
                                   callbacks=[HalveEncoder(), log])
        log.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("sum", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
