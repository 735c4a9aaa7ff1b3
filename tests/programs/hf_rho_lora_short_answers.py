"""Selective language modelling (Rho-1) on a handful of questions, LoRA on a tiny Llama, HF Trainer.

Only the 60 % of the answer's tokens are trained that the adapted model finds harder than the base model does.
"""
import logging
import os
import tempfile
os.environ["TOKENIZERS_PARALLELISM"] = "false"
logging.disable(logging.WARNING)
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments, set_seed

set_seed(5)
QA = [("capital of peru", "lima"), ("colour of grass", "green"), ("opposite of up", "down"), ("frozen water", "ice"),
      ("baby of a cow", "calf"), ("king of beasts", "lion"), ("largest ocean", "pacific"), ("capital of egypt", "cairo"),
      ("metal of wires", "copper"), ("legs of a spider", "8"), ("red planet", "mars"), ("home of bees", "hive"),
      ("capital of cuba", "havana"), ("opposite of hot", "cold"), ("sour yellow fruit", "lemon"), ("first month", "january"),
      ("bird that hoots", "owl"), ("capital of kenya", "nairobi"), ("place of books", "library"), ("young dog", "puppy"),
      ("water from the sky", "rain"), ("star of the day", "sun"), ("tool for nails", "hammer"), ("sweet of bees", "honey"),
      ("capital of chile", "santiago"), ("shape of a ball", "sphere"), ("opposite of day", "night"), ("red fruit", "cherry")]
CHARS = sorted(set("".join(q + a for q, a in QA) + "?>"))
BOS, PAD = len(CHARS), len(CHARS) + 1


def encode(q, a):
    prompt = [BOS] + [CHARS.index(c) for c in q + "?>"]
    answer = [CHARS.index(c) for c in a]
    return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}


def collate(rows):
    n = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [PAD] * (n - len(r["input_ids"])) for r in rows])
    labels = torch.tensor([r["labels"] + [-100] * (n - len(r["labels"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


class RhoTrainer(Trainer):
    ratio = 0.6

    def token_nll(self, model, inputs):
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
        labels = inputs["labels"][:, 1:]
        seen = labels != -100
        return torch.nn.functional.cross_entropy(logits[seen], labels[seen], reduction="none")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        nll = self.token_nll(model, inputs)
        with torch.no_grad(), model.disable_adapter():
            excess = nll.detach() - self.token_nll(model, inputs)
        k = int(self.ratio * excess.numel())
        rank = excess.argsort(descending=True, stable=True).argsort()
        keep = (rank < k).float()
        loss = (nll * keep).sum() / keep.sum()
        print(f"step {self.state.global_step + 1} tokens {excess.numel()} kept {k} loss {loss.item():.6f}", flush=True)
        return (loss, None) if return_outputs else loss


base = LlamaForCausalLM(LlamaConfig(vocab_size=len(CHARS) + 2, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"],
                                        modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(output_dir=out, per_device_train_batch_size=1, num_train_epochs=1, learning_rate=4e-3,
                             lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_strategy="no",
                             disable_tqdm=True, use_cpu=True, seed=5)
    trainer = RhoTrainer(model=model, args=args, train_dataset=[encode(q, a) for q, a in QA], data_collator=collate)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("final", sum(p.detach().abs().sum().item() for p in model.parameters() if p.requires_grad))
