import logging
import tempfile

logging.disable(logging.WARNING)

import torch
import torch.nn.functional as F
from torch.utils.data import SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)


class UnlikelihoodTrainer(Trainer):
    """Token-level unlikelihood against repeating the context (Welleck et al.)."""
    alpha = 0.5

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs["input_ids"]
        outputs = model(input_ids=ids)
        logits, target = outputs.logits[:, :-1], ids[:, 1:]
        mle = F.cross_entropy(logits.flatten(0, 1), target.flatten())

        probs = logits.softmax(dim=-1)
        seen = F.one_hot(ids[:, :-1], probs.size(-1)).cumsum(dim=1).clamp(max=1)
        negatives = seen.scatter(2, target.unsqueeze(-1), 0).to(probs.dtype)
        penalty = -torch.log(1.0 - probs) * negatives
        loss = mle + self.alpha * penalty.sum(-1).mean()
        return (loss, outputs) if return_outputs else loss


def recipes(n):
    g = torch.Generator().manual_seed(0)
    for _ in range(n):
        first = int(torch.randint(0, 12, (1,), generator=g))
        yield {"input_ids": [(first + 3 * t) % 36 for t in range(16)]}


model = GPT2LMHeadModel(GPT2Config(vocab_size=36, n_positions=16, bos_token_id=None, eos_token_id=None,
                                   n_embd=48, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
model = model.to(torch.bfloat16)
args = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=90,
                         learning_rate=1e-2, lr_scheduler_type="constant", logging_steps=1,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                         dataloader_pin_memory=False)
trainer = UnlikelihoodTrainer(model=model, args=args, train_dataset=list(recipes(720)))
trainer.train()
print("weights", sum(p.detach().float().pow(2).sum().item() for p in model.parameters()))
