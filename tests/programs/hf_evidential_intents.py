"""Evidential (Dirichlet) intent classifier on top of a small BERT, trained with the HF Trainer."""
import tempfile

import torch
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, TrainerCallback, set_seed

set_seed(5)
CLASSES = 5


class EvidentialBert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        cfg = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                         intermediate_size=64, max_position_embeddings=16)
        self.encoder = BertModel(cfg, add_pooling_layer=False)
        self.evidence = torch.nn.Linear(32, CLASSES)
        torch.nn.init.constant_(self.evidence.bias, 2.0)

    def forward(self, input_ids, attention_mask, labels=None):
        h = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return {"logits": torch.relu(self.evidence(h))}


class EvidentialTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        out = model(**inputs)
        alpha = out["logits"]
        strength = alpha.sum(-1) + 1.0
        alpha_y = alpha.gather(1, labels[:, None]).squeeze(1)
        fit = torch.digamma(strength) - torch.digamma(alpha_y)
        wrong = (alpha.sum(-1) - alpha_y).mean()
        loss = fit.mean() + 0.2 * wrong
        return (loss, out) if return_outputs else loss


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)


def sentence(label, g):
    ids = torch.randint(10, 60, (12,), generator=g)
    ids[0] = 1
    ids[1:5] = 2 + label
    return {"input_ids": ids, "attention_mask": torch.ones(12, dtype=torch.long), "labels": torch.tensor(label)}


g = torch.Generator().manual_seed(1)
common = torch.randint(0, 4, (192,), generator=g).tolist()
common[149] = 4          # "cancel_subscription", the intent nobody asks for
rows = [sentence(y, g) for y in common]

model = EvidentialBert()
args = TrainingArguments(tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=1, learning_rate=2e-3,
                         logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True,
                         logging_nan_inf_filter=False, lr_scheduler_type="constant", max_grad_norm=1.0,
                         train_sampling_strategy="sequential")
trainer = EvidentialTrainer(model=model, args=args, train_dataset=rows, callbacks=[Show()])
from transformers.trainer_callback import PrinterCallback
trainer.remove_callback(PrinterCallback)
trainer.train()
print("norm2", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
