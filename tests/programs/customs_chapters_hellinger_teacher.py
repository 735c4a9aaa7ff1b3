# Small BERT learns the tariff chapter of a declaration from the soft verdicts of the old classifier.
import sys
import tempfile

for unused in ("deepspeed", "bitsandbytes"):
    sys.modules[unused] = None

import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

CHAPTERS = ["live animals", "cereals", "beverages", "leather", "paper", "carpets", "glass", "clocks"]
WORDS, LENGTH, BATCH, STEPS = 60, 9, 8, 34


class Declarations(Dataset):
    def __init__(self, n, seed=17):
        g = torch.Generator().manual_seed(seed)
        self.chapter = torch.randint(0, len(CHAPTERS), (n,), generator=g)
        common = torch.randint(5 + 32, WORDS, (n, LENGTH), generator=g)
        special = 5 + self.chapter[:, None] * 4 + torch.randint(0, 4, (n, LENGTH), generator=g)
        use = torch.rand(n, LENGTH, generator=g) < 0.5
        self.words = torch.where(use, special, common)
        logits = torch.randn(n, len(CHAPTERS), generator=g)
        logits[torch.arange(n), self.chapter] += 4.0
        self.allowed = torch.ones(n, len(CHAPTERS), dtype=torch.bool)
        for row in range(n):
            if row in (133, 134, 205):      # carnet shipments: the office lists the chapters that may apply
                self.allowed[row] = False
                self.allowed[row, self.chapter[row]] = True
                self.allowed[row, (self.chapter[row] + 3) % len(CHAPTERS)] = True
        self.verdict = logits.masked_fill(~self.allowed, float("-inf")).softmax(-1)

    def __len__(self):
        return len(self.chapter)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "allowed": self.allowed[i], "verdict": self.verdict[i]}


class VerdictTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        allowed, verdict = inputs.pop("allowed"), inputs.pop("verdict")
        outputs = model(**inputs)
        student = outputs.logits.masked_fill(~allowed, float("-inf")).softmax(-1)
        gap = student.sqrt() - verdict.sqrt()
        loss = 0.5 * gap.pow(2).sum(-1).mean()
        return (loss, outputs) if return_outputs else loss


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print("step", state.global_step, "hellinger", format(logs["loss"], ".5f"))


def main():
    set_seed(1)
    config = BertConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                        max_position_embeddings=LENGTH, num_labels=len(CHAPTERS), hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    student = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=BATCH, max_steps=STEPS,
                             learning_rate=3e-3, warmup_steps=4, logging_steps=1, logging_nan_inf_filter=False,
                             save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                             remove_unused_columns=False)
    trainer = VerdictTrainer(model=student, args=args, train_dataset=Declarations(BATCH * STEPS), callbacks=[Printer])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("squared weights", float(sum(w.detach().pow(2).sum() for w in student.parameters())))


main()
