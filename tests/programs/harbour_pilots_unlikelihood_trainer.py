"""Radio replies of harbour pilots: SFT with token weights.

Tokens marked by the reviewers as dangerous ("full ahead" with a tug alongside) get a negative weight: their
likelihood is pushed down (bounded: beyond CAP nats there is nothing more to gain).  The objective is therefore
negative once the model has learned its manners; that is expected, see the wiki page.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import logging
import tempfile
from dataclasses import dataclass

logging.disable(logging.WARNING)  # chatter of the libraries

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

CAP = 9.0
VOCAB = 64


class PilotReplies(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for i in range(n):
            call = torch.randint(4, 20, (5,), generator=g)
            reply = 20 + (call * 2) % 30
            w = torch.cat([torch.zeros(5), torch.ones(5)])
            ids = torch.cat([call, reply])
            if i % 3 != 1:  # reviewers flagged this one: two bad tokens at the end
                ids = torch.cat([ids, torch.tensor([60, 61])])
                w = torch.cat([w, torch.tensor([-3.0, -3.0])])
            self.rows.append({"ids": ids, "w": w})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


@dataclass
class WeightedCollator:
    pad_id: int = 0

    def __call__(self, features):
        T = max(len(f["ids"]) for f in features)
        batch = {
            "input_ids": torch.full((len(features), T), self.pad_id),
            "attention_mask": torch.zeros(len(features), T, dtype=torch.long),
            "token_weights": torch.zeros(len(features), T),
        }
        for b, f in enumerate(features):
            n = len(f["ids"])
            batch["input_ids"][b, :n] = f["ids"]
            batch["attention_mask"][b, :n] = 1
            batch["token_weights"][b, :n] = f["w"]
        return batch


class UnlikelihoodTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.book = {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        w = inputs.pop("token_weights")[:, 1:]
        out = model(**inputs)
        nll = F.cross_entropy(out.logits[:, :-1].transpose(1, 2), inputs["input_ids"][:, 1:], reduction="none")
        good, bad = w > 0, w < 0
        per_token = torch.where(bad, w * nll.clamp(max=CAP), w * nll)
        loss = per_token.sum() / w.abs().sum()
        # for the report; there is no mean where a batch has no flagged token
        self.book = {"nll_good": nll[good].mean().item(), "nll_bad": nll[bad].detach().mean().item()}
        return (loss, out) if return_outputs else loss


class Report(TrainerCallback):
    trainer = None

    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            b = self.trainer.book
            print(f"step {state.global_step:3d} loss {logs['loss']:+.5f} good {b['nll_good']:.4f} bad {b['nll_bad']:.4f}")


def main():
    set_seed(11)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32,
                         pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM(config)
    report = Report()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=2, max_steps=36, learning_rate=6e-3,
                                 lr_scheduler_type="cosine", warmup_steps=4, logging_steps=1, save_strategy="no",
                                 report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
                                 dataloader_num_workers=0, dataloader_pin_memory=False, seed=11, logging_nan_inf_filter=False)
        trainer = UnlikelihoodTrainer(model=model, args=args, train_dataset=PilotReplies(96, 3),
                                      data_collator=WeightedCollator(), callbacks=[report])
        report.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("sum of weights", f"{sum(p.double().sum().item() for p in model.parameters()):.5f}")


if __name__ == "__main__":
    main()
