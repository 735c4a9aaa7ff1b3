"""LoRA + a saved classification head over parish register entries: baptism, marriage or burial.

float16 autocast with a GradScaler that starts far too high on purpose (we let it find its level),
and a weighted sampler because burials outnumber everything else in the plague years.
"""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
from collections import Counter
import random

import torch
import torch.nn.functional as F
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, WeightedRandomSampler
from transformers import GPT2Config, GPT2ForSequenceClassification, set_seed

KINDS = ("baptism", "marriage", "burial")
PHRASES = {
    "baptism": "son|daughter|of|infant|christened|godfather|john|mary|font",
    "marriage": "banns|wed|spinster|bachelor|of|this|parish|mary|john",
    "burial": "buried|aged|widow|plague|of|poor|stranger|john|mary",
}
VOCAB = ["#"] + sorted({w for p in PHRASES.values() for w in p.split("|")})


def register(n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        kind = rng.choices(KINDS, (2, 1, 9))[0]
        words = rng.choices(PHRASES[kind].split("|"), k=rng.randint(4, 10))
        yield [VOCAB.index(w) for w in words], KINDS.index(kind)


def batchify(rows):
    w = max(len(x) for x, _ in rows)
    ids = torch.tensor([x + [0] * (w - len(x)) for x, _ in rows])
    return ids, (ids != 0).long(), torch.tensor([y for _, y in rows])


class Settling:
    """Keeps count of what the scaler did; a fall of the scale means the step was dropped."""

    def __init__(self, scaler):
        self.scaler, self.dropped, self.before = scaler, 0, scaler.get_scale()

    def observe(self):
        now = self.scaler.get_scale()
        fell = now < self.before
        self.dropped += fell
        self.before = now
        return "dropped" if fell else ""


def main():
    set_seed(1665)
    rows = list(register(160, 1))
    counts = Counter(y for _, y in rows)
    sampler = WeightedRandomSampler([1 / counts[y] for _, y in rows], num_samples=200, replacement=True,
                                    generator=torch.Generator().manual_seed(9))
    loader = DataLoader(rows, batch_size=5, sampler=sampler, collate_fn=batchify)

    base = GPT2ForSequenceClassification(GPT2Config(
        vocab_size=len(VOCAB), n_positions=16, n_embd=32, n_layer=2, n_head=2, num_labels=len(KINDS), pad_token_id=0,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1))
    model = get_peft_model(base, LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["c_attn"],
                                            fan_in_fan_out=True, modules_to_save=["score"]))
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 21, growth_interval=15)
    settling = Settling(scaler)

    model.train()
    for step, (ids, mask, kind) in enumerate(loader, 1):
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(logits.float(), kind, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"entry {step:02d} loss {loss.item():.6f} {settling.observe()}".rstrip())

    print(f"dropped {settling.dropped}; adapters sum to {sum(p.detach().double().sum().item() for p in params):.6f}")


if __name__ == "__main__":
    main()
