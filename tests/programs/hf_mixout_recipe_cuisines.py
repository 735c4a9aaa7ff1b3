# Recipe -> cuisine with a tiny BERT and the HF Trainer. Mixout (Lee et al. 2020) instead of dropout:
# each weight is swapped back to its starting value with probability p, and p is raised while training.
import os
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["DS_ACCELERATOR"] = "cpu"
import tempfile
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (BertConfig, BertForSequenceClassification, PrinterCallback, Trainer,
                          TrainerCallback, TrainingArguments, set_seed)
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()
set_seed(21)


class MixLinear(nn.Linear):
    def __init__(self, dense: nn.Linear, p: float = 0.0):
        super().__init__(dense.in_features, dense.out_features)
        self.load_state_dict(dense.state_dict())
        self.register_buffer("start", dense.weight.detach().clone(), persistent=False)
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return super().forward(x)
        keep = torch.bernoulli(torch.full_like(self.weight, 1 - self.p))
        moved = keep * (self.weight - self.start) / (1 - self.p)
        return nn.functional.linear(x, self.start + moved, self.bias)


class RaiseMixout(TrainerCallback):
    """p: 0 -> final over `over` steps, then constant"""

    def __init__(self, layers, over, final):
        self.layers, self.over, self.final = layers, over, final

    def on_step_begin(self, args, state, control, **kw):
        p = self.final * min(1.0, state.global_step / self.over)
        for layer in self.layers:
            layer.p = p

    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}")


class Recipes(Dataset):
    def __init__(self, n=96, length=14):
        g = torch.Generator().manual_seed(4)
        self.y = torch.randint(0, 4, (n,), generator=g)
        common = torch.randint(2, 20, (n, length), generator=g)
        typical = 20 + self.y[:, None] * 10 + torch.randint(0, 10, (n, length), generator=g)
        pick = torch.rand(n, length, generator=g) < 0.4
        self.x = torch.where(pick, typical, common)
        self.x[:, 0] = 1

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "attention_mask": torch.ones_like(self.x[i]), "labels": self.y[i]}


config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=48, max_position_embeddings=32, num_labels=4,
                    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config)
mixed = []
for block in model.bert.encoder.layer:
    block.intermediate.dense = MixLinear(block.intermediate.dense)
    block.output.dense = MixLinear(block.output.dense)
    mixed += [block.intermediate.dense, block.output.dense]

with tempfile.TemporaryDirectory() as tmp:
    args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=12, max_steps=32, learning_rate=2e-3,
                             lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[],
                             disable_tqdm=True, use_cpu=True, seed=21)
    trainer = Trainer(model=model, args=args, train_dataset=Recipes(),
                      callbacks=[RaiseMixout(mixed, over=16, final=1.0)])
    trainer.remove_callback(PrinterCallback)
    trainer.train()

print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))
