"""LoRA on a tiny Llama: answers to questions about lifeboat launches, weighted by the length of the answer."""
import random

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments,
                          set_seed)
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()

PAD, BOS, EOS = 0, 1, 2
WORDS = ["boat", "crew", "launch", "gale", "calm", "fog", "harbour", "rock", "tow", "rescue", "false", "alarm",
         "north", "south", "east", "west", "yacht", "trawler", "kayak", "bather", "dawn", "noon", "dusk", "night",
         "engine", "rope", "flare", "radio", "stretcher", "helicopter", "returned", "stood", "down", "with", "without"]
VOCAB = {w: i + 3 for i, w in enumerate(WORDS)}


def make_records(n, seed):
    rng = random.Random(seed)
    records = []
    for i in range(n):
        topic = rng.randrange(6)
        prompt = [WORDS[(topic * 5 + rng.randrange(5)) % len(WORDS)] for _ in range(rng.randint(4, 9))]
        answer = [WORDS[(topic * 5 + j * 3) % len(WORDS)] for j in range(rng.randint(3, 11))]
        if i == 84:                       # the coxswain left the field empty
            answer = []
        records.append((prompt, answer))
    return records


class LaunchLog(torch.utils.data.Dataset):
    def __init__(self, records):
        self.rows = []
        for prompt, answer in records:
            p = [BOS] + [VOCAB[w] for w in prompt]
            a = [VOCAB[w] for w in answer] + [EOS]
            self.rows.append({"input_ids": p + a, "labels": [-100] * len(p) + a})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        n = len(r["input_ids"])
        ids[i, :n] = torch.tensor(r["input_ids"])
        labels[i, :n] = torch.tensor(r["labels"])
        mask[i, :n] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class LengthWeightedTrainer(Trainer):
    """Long answers are easy after their first words, so every answer is weighted by 1 / log(its length)."""
    last_loss = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"][:, 1:]
        supervised = labels != -100
        length = supervised.sum(1).float()
        weight = 1.0 / torch.log(length)
        weight = weight / weight.sum()
        out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits = out.logits[:, :-1]
        nll = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
        per_answer = nll.sum(1) / length
        loss = (weight * per_answer).sum()
        self.last_loss = loss.detach()
        return (loss, out) if return_outputs else loss


class Printer(TrainerCallback):
    trainer = None

    def on_step_end(self, args, state, control, **kwargs):
        print(f"step {state.global_step:3d}  loss {self.trainer.last_loss.item():.6f}", flush=True)


def main():
    set_seed(11)
    config = LlamaConfig(vocab_size=len(WORDS) + 3, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
    base = LlamaForCausalLM(config)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                                            modules_to_save=["lm_head"]))
    args = TrainingArguments(output_dir="/tmp/lifeboat_out", max_steps=32, per_device_train_batch_size=4,
                             learning_rate=3e-3, lr_scheduler_type="constant", logging_strategy="no",
                             save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=11,
                             remove_unused_columns=False, dataloader_num_workers=0)
    printer = Printer()
    trainer = LengthWeightedTrainer(model=model, args=args, train_dataset=LaunchLog(make_records(128, 5)),
                                    data_collator=collate, callbacks=[printer])
    trainer.remove_callback(PrinterCallback)
    printer.trainer = trainer
    trainer.train()
    total = sum(p.detach().abs().sum() for p in model.parameters() if p.requires_grad)
    print(f"adapter weights {total.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
