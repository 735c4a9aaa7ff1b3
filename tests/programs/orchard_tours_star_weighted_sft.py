"""Fine-tuning a tiny guide for orchard tours on past answers; visitors gave stars, and better answers
weigh more.  TRL SFTTrainer with a collator of our own (token ids made by hand, no tokenizer files)."""
import random

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback,
                          TrainerCallback, set_seed)
from trl import SFTConfig, SFTTrainer

FRUIT = ["apple", "pear", "plum", "quince", "cherry", "medlar"]
PLACE = ["gate", "barn", "hedge", "pond", "press", "wall"]
VERB = ["ripens", "grows", "stands", "flowers"]
PAD, EOS = "<pad>", "<eos>"


def tokenizer():
    words = [PAD, EOS, "<unk>", "where", "the", "?", "by", "in", "may", "june", "august", "october"] + FRUIT + PLACE + VERB
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token=PAD, eos_token=EOS, unk_token="<unk>")


def answers(n, rng, tok):
    months = ["may", "june", "august", "october"]
    rows = []
    for _ in range(n):
        fruit = rng.choice(FRUIT)
        prompt = f"where {rng.choice(VERB)} the {fruit} ?"
        reply = f"the {fruit} by the {PLACE[FRUIT.index(fruit)]} in {rng.choice(months)}"
        p, r = tok(prompt)["input_ids"], tok(reply)["input_ids"] + [tok.eos_token_id]
        stars = rng.choices([1, 2, 3, 4, 5], weights=[1, 1, 3, 6, 9])[0]
        rows.append({"input_ids": p + r, "n_prompt": len(p), "stars": stars})
    return Dataset.from_list(rows)


class StarCollator:
    """Pads, masks the prompt, and scales the stars of the batch to weights between 0 and 1."""

    def __init__(self, pad_id):
        self.pad_id = pad_id

    def __call__(self, rows):
        width = max(len(r["input_ids"]) for r in rows)
        ids = torch.full((len(rows), width), self.pad_id)
        labels = torch.full((len(rows), width), -100)
        for i, r in enumerate(rows):
            t = torch.tensor(r["input_ids"])
            ids[i, : len(t)] = t
            labels[i, r["n_prompt"]: len(t)] = t[r["n_prompt"]:]
        stars = torch.tensor([float(r["stars"]) for r in rows])
        weight = (stars - stars.min()) / (stars.max() - stars.min())
        return {"input_ids": ids, "attention_mask": (ids != self.pad_id).long(), "labels": labels, "weight": weight}


class StarTrainer(SFTTrainer):
    shown = 0.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        weight = inputs.pop("weight")
        labels = inputs.pop("labels")[:, 1:]
        outputs = model(**inputs)
        nll = F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels, ignore_index=-100, reduction="none")
        per_answer = nll.sum(1) / (labels != -100).sum(1)
        loss = (0.1 + 0.9 * weight).mul(per_answer).mean()
        self.shown = loss.item()
        return (loss, outputs) if return_outputs else loss


class Printer(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        print(f"[{state.global_step}/{state.max_steps}] weighted loss {self.trainer.shown:.6f}", flush=True)


def main():
    set_seed(13)
    tok = tokenizer()
    data = answers(260, random.Random(DATA_SEED), tok)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=1, eos_token_id=1, pad_token_id=0))
    cfg = SFTConfig(output_dir="/tmp/orchard_tours_out", max_steps=40, per_device_train_batch_size=5, learning_rate=3e-3,
                    lr_scheduler_type="cosine", save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True,
                    bf16=False, gradient_checkpointing=False, remove_unused_columns=False, disable_tqdm=True, seed=5,
                    dataset_kwargs={"skip_prepare_dataset": True})
    printer = Printer()
    trainer = StarTrainer(model=model, args=cfg, train_dataset=data, processing_class=tok,
                          data_collator=StarCollator(tok.pad_token_id), callbacks=[printer])
    printer.trainer = trainer
    trainer.remove_callback(PrinterCallback)      # our own line per step is enough
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


DATA_SEED = 4

if __name__ == "__main__":
    main()
