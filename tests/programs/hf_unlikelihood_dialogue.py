"""Token-level unlikelihood (Welleck et al. 2020) on top of the Hugging Face Trainer."""
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

VOCAB, WIDTH, LENGTH = 120, 64, 14


class TinyChat(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.mixer = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids, labels=None):
        e = self.embed(input_ids)
        h = self.norm(e + self.mixer(e)[0])
        return {"logits": h @ self.embed.weight.t()}      # tied


class UnlikelihoodTrainer(Trainer):
    alpha = 1.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs["input_ids"]
        logits = model(input_ids=ids)["logits"][:, :-1]
        target = ids[:, 1:]
        mle = F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))

        # candidates: whatever has been said so far in this row, but not the right answer
        seen = F.one_hot(ids[:, :-1], VOCAB).cumsum(1).clamp(max=1)
        seen = seen * (1 - F.one_hot(target, VOCAB))
        prob = logits.softmax(-1)
        penalty = -torch.log(1.0 - prob) * seen
        loss = mle + self.alpha * penalty.sum(-1).mean()
        return (loss, {"logits": logits}) if return_outputs else loss


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}")


class Dialogues(torch.utils.data.Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(12)
        start = torch.randint(0, VOCAB, (n, 1), generator=g)
        stride = torch.randint(1, 5, (n, 1), generator=g)
        self.rows = (start + stride * torch.arange(LENGTH)) % VOCAB

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=12, per_device_train_batch_size=8,
                         learning_rate=2e-3, logging_steps=1, report_to="none", save_strategy="no",
                         disable_tqdm=True, use_cpu=True, seed=0, lr_scheduler_type="constant")
torch.manual_seed(0)
model = TinyChat()
trainer = UnlikelihoodTrainer(model=model, args=args, train_dataset=Dialogues(), callbacks=[PrintLoss()])
trainer.train()
print("weights^2", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
