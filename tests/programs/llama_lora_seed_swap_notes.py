# Tiny Llama, LoRA adapters, Trainer with its own loss: notes that go with packets at a seed swap.
# The loss is token NLL with a bonus for entropy (so it may fall below zero once the notes are known),
# per row, rows without an answer count nothing. The curriculum moves from short to long notes and
# then to notes in the other valley's dialect, which is a jump.
import random
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset, SequentialSampler
from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

PLANTS = "bean kale leek beet pea chard squash".split()
ADVICE = "sow thin hoe shade water mulch save".split()
DIALECT = "zaan dunnen hakken luwte gieten".split()
WORDS = ["<pad>", "<s>", "</s>", ":"] + PLANTS + ADVICE + DIALECT
ID = {w: i for i, w in enumerate(WORDS)}


class Notes(Dataset):
    def __init__(self, n, seed):
        r = random.Random(seed)
        self.rows = []
        for i in range(n):
            plant = r.randrange(len(PLANTS))
            length = 2 + 5 * i // n
            words = DIALECT if i > 0.75 * n else ADVICE
            answer = [words[(plant + k) % len(words)] for k in range(length)]
            if r.random() < 0.15:
                answer = []                      # a packet with no note
            self.rows.append(([PLANTS[plant], ":"], answer))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        prompt, answer = self.rows[i]
        ids = [ID["<s>"]] + [ID[w] for w in prompt]
        tail = [ID[w] for w in answer] + ([ID["</s>"]] if answer else [])
        return {"ids": ids + tail, "labels": [-100] * len(ids) + tail}


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    pad = lambda v, fill: v + [fill] * (width - len(v))
    return {
        "input_ids": torch.tensor([pad(r["ids"], 0) for r in rows]),
        "attention_mask": torch.tensor([pad([1] * len(r["ids"]), 0) for r in rows]),
        "labels": torch.tensor([pad(r["labels"], -100) for r in rows]),
    }


class NoteTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False   # the loss below is a mean: let accumulation divide it

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")[:, 1:]
        out = model(**inputs)
        logp = out.logits[:, :-1].float().log_softmax(-1)
        told = labels != -100
        nll = -logp.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        entropy = -(logp.exp() * logp).sum(-1)
        row = ((nll - 0.6 * entropy) * told).sum(-1) / told.sum(-1).clamp(min=1)
        loss = row.sum() / told.any(-1).sum().clamp(min=1)
        dialect = told & (labels >= ID[DIALECT[0]])
        hits = (logp.argmax(-1) == labels)[dialect].float()
        self.dialect_hits = hits.mean().item()   # nan while there is no dialect
        return (loss, out) if return_outputs else loss


class Say(TrainerCallback):
    trainer = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"{state.global_step:3d} loss {logs['loss']} grad {logs['grad_norm']:.5f} "
                  f"dialect {self.trainer.dialect_hits:.3f}", flush=True)


def main():
    set_seed(11)
    config = LlamaConfig(vocab_size=len(WORDS), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                         pad_token_id=0, bos_token_id=1, eos_token_id=2)
    base = LlamaForCausalLM(config)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"],
                                            modules_to_save=["lm_head"]))
    args = TrainingArguments(tempfile.mkdtemp(), max_steps=45, per_device_train_batch_size=8,
                             gradient_accumulation_steps=2, learning_rate=2e-2, logging_steps=1,
                             lr_scheduler_type="constant", report_to=[], save_strategy="no", disable_tqdm=True,
                             use_cpu=True, remove_unused_columns=False, seed=11)
    say = Say()
    trainer = NoteTrainer(model=model, args=args, train_dataset=Notes(45 * 16, 3), data_collator=collate,
                          callbacks=[say])
    say.trainer = trainer
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.detach().abs().sum() for p in model.parameters() if p.requires_grad).item():.5f}")


if __name__ == "__main__":
    main()
