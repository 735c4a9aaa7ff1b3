"""LoRA fine-tuning of a tiny GPT-2 on lift engineers' fault notes, with callbacks that tune the optimizer on the way."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import random
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed)
from transformers.trainer_callback import PrinterCallback

PARTS = "door motor cable brake relay button governor buffer guide rail".split()
STATES = "jams hums slips sticks trips blinks chatters drifts".split()
FLOORS = [f"floor{i}" for i in range(12)]
ACTIONS = "oiled replaced cleaned reset adjusted logged".split()
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<urgent>", "<photo>", "<redacted>"]
VOCAB = {w: i for i, w in enumerate(SPECIAL + PARTS + STATES + FLOORS + ACTIONS)}


class FaultNotes(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            part = rng.choice(PARTS)
            state = STATES[(PARTS.index(part) + rng.randrange(2)) % len(STATES)]
            words = ["<s>", part, state, rng.choice(FLOORS), ACTIONS[STATES.index(state) % len(ACTIONS)], "</s>"]
            if rng.random() < 0.4:
                words.insert(4, rng.choice(FLOORS))
            self.rows.append([VOCAB[w] for w in words])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate(features):
    width = max(len(f["input_ids"]) for f in features)
    ids = torch.full((len(features), width), VOCAB["</s>"])
    mask = torch.zeros(len(features), width, dtype=torch.long)
    for r, f in enumerate(features):
        ids[r, :len(f["input_ids"])] = torch.tensor(f["input_ids"])
        mask[r, :len(f["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class SharpenAdam(TrainerCallback):
    """Once the moments have settled the damping of Adam only slows the small adapter entries: fade it out."""

    def __init__(self, start, stop, first):
        self.start, self.stop, self.first = start, stop, first

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        step = state.global_step + 1
        frac = min(1.0, max(0.0, (step - self.start) / (self.stop - self.start)))
        for group in optimizer.param_groups:
            group["eps"] = self.first * (1.0 - frac)


class HalveDropout(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        if state.global_step == 10:
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p *= 0.5


class OneLine(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f} grad_norm {logs['grad_norm']:.6f}", flush=True)


def build_model():
    config = GPT2Config(vocab_size=len(VOCAB), n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.05,
                        embd_pdrop=0.05, attn_pdrop=0.05, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    base = GPT2LMHeadModel(config)
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["wte", "c_attn"], fan_in_fan_out=True,
                      task_type="CAUSAL_LM")
    return get_peft_model(base, lora)


def main():
    set_seed(23)
    model = build_model()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, max_steps=30, per_device_train_batch_size=16, learning_rate=4e-3,
                                 lr_scheduler_type="constant", weight_decay=0.0, logging_steps=1, save_strategy="no",
                                 report_to=[], disable_tqdm=True, optim="adamw_torch", use_cpu=True, seed=23)
        trainer = Trainer(model=model, args=args, train_dataset=FaultNotes(512, 5), data_collator=collate,
                          callbacks=[SharpenAdam(4, 18, 1e-6), HalveDropout(), OneLine()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    total = sum(p.detach().abs().sum().item() for p in model.parameters() if p.requires_grad)
    print(f"{total:.6f}", flush=True)


if __name__ == "__main__":
    main()
