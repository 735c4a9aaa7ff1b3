"""Fill in customs forms: a causal model with closed answer lists; HF Trainer, label smoothing of our own."""
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

VOCAB, LENGTH = 50, 16


@dataclass
class Form:
    ids: torch.Tensor
    allowed: torch.Tensor    # which tokens may be written at all in this form


class Forms(Dataset):
    """First the free-text forms, then the forms with tick boxes (an easy-to-hard order that we keep)."""

    def __init__(self, free=144, closed=112, seed=9):
        g = torch.Generator().manual_seed(seed)
        self.forms = []
        for i in range(free + closed):
            allowed = torch.ones(VOCAB, dtype=torch.bool)
            ids = (torch.randint(0, VOCAB, (1,), generator=g) + 3 * torch.arange(LENGTH)) % VOCAB
            if i >= free:
                ids = 20 + ids % 8
                allowed[:20] = False
                allowed[28:] = False
            self.forms.append(Form(ids, allowed))

    def __len__(self):
        return len(self.forms)

    def __getitem__(self, i):
        return self.forms[i]


def collate(forms):
    ids = torch.stack([f.ids for f in forms])
    return {"input_ids": ids, "labels": ids.clone(), "allowed": torch.stack([f.allowed for f in forms])}


class FormTrainer(Trainer):
    smoothing = 0.05
    seen = 0

    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"], use_cache=False)
        logits = out.logits[:, :-1].masked_fill(~inputs["allowed"][:, None], float("-inf"))
        logp = F.log_softmax(logits, dim=-1)
        target = inputs["labels"][:, 1:, None]
        nll = -logp.gather(-1, target).mean()
        uniform = -logp.mean(-1).mean()
        loss = (1 - self.smoothing) * nll + self.smoothing * uniform
        self.seen += 1
        print(f"step {self.seen} nll {nll.item():.6f} loss {loss.item():.6f}", flush=True)
        return (loss, out) if return_outputs else loss


def main():
    set_seed(21)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=2, max_position_embeddings=32))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(output_dir=out, per_device_train_batch_size=8, num_train_epochs=1, learning_rate=2e-3,
                                 report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
                                 use_cpu=True, remove_unused_columns=False, lr_scheduler_type="constant")
        trainer = FormTrainer(model=model, args=args, train_dataset=Forms(), data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
