import os
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["DS_ACCELERATOR"] = "cpu"

import torch
import torch.nn.functional as F
from transformers import (GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed)

set_seed(5)

AREAS = "viking utsire forties cromarty forth tyne dogger fisher german-bight humber".split()
WORDS = "southwesterly northerly gale rain showers good moderate poor occasionally later veering backing 4 5 6 7".split()
itos = ["<pad>", "<s>", "</s>", "<unused0>", "<unused1>", "<unused2>"] + AREAS + WORDS
stoi = {w: i for i, w in enumerate(itos)}
BANNED = torch.tensor([0, 3, 4, 5])


class Forecasts(torch.utils.data.Dataset):
    def __init__(self, n=96, length=14):
        g = torch.Generator().manual_seed(9)
        self.rows = []
        for _ in range(n):
            a = int(torch.randint(len(AREAS), (1,), generator=g))
            body = [stoi[AREAS[a]]]
            w = a
            for _ in range(int(torch.randint(5, length - 2, (1,), generator=g))):
                w = (w * 5 + 3 + int(torch.randint(2, (1,), generator=g))) % len(WORDS)
                body.append(stoi[WORDS[w]])
            ids = [1] + body + [2]
            pad = length - len(ids)
            self.rows.append(dict(input_ids=torch.tensor(ids + [0] * pad),
                                  attention_mask=torch.tensor([1] * len(ids) + [0] * pad),
                                  labels=torch.tensor(ids + [-100] * pad)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class DistillTrainer(Trainer):
    def __init__(self, *a, teacher=None, T=2.0, lam=0.5, **kw):
        super().__init__(*a, **kw)
        self.teacher, self.T, self.lam = teacher.eval(), T, lam

    @torch.no_grad()
    def teacher_probs(self, inputs):
        z = self.teacher(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
        z = z.index_fill(-1, BANNED, float("-inf"))
        kth = z.topk(6, dim=-1).values[..., -1:]
        z = torch.where(z < kth, torch.full_like(z, float("-inf")), z)   # top-6 of the teacher
        return (z / self.T).softmax(-1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        target = self.teacher_probs(inputs)
        logq = F.log_softmax(out.logits[:, :-1] / self.T, dim=-1)
        kl = F.kl_div(logq, target, reduction="none").sum(-1)
        keep = inputs["labels"][:, 1:] != -100
        loss = self.lam * out.loss + (1 - self.lam) * self.T ** 2 * kl[keep].mean()
        return (loss, out) if return_outputs else loss


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} grad {float(logs['grad_norm']):.3f}", flush=True)


def build(layers, width):
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(itos), n_positions=16, n_embd=width, n_layer=layers, n_head=2,
                                      bos_token_id=1, eos_token_id=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


data = Forecasts()
teacher = build(2, 48)
student = build(1, 24)
args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=36, per_device_train_batch_size=8, learning_rate=4e-3,
                         warmup_steps=6, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=5,
                         use_cpu=True, lr_scheduler_type="cosine", label_smoothing_factor=0.0, max_grad_norm=0.7)
trainer = DistillTrainer(model=student, args=args, train_dataset=data, teacher=teacher)
trainer.remove_callback(PrinterCallback)
trainer.add_callback(Say())
trainer.train()
