"""Adapt a small causal LM to the house style of our shipping bulletins (LoRA, gradient accumulation).

Only the forecaster's own sentence ("outlook ...") is supervised; the synoptic preamble is copied from the model output
and carries label -100. Long bulletins are cut into fixed windows, so a window can consist of preamble alone. The loss is
therefore summed per window and divided by the number of labels of the whole accumulation, never by that of one window.
"""
import logging
import os
import random
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
warnings.filterwarnings("ignore", category=FutureWarning)
CFG = dict(window=24, accumulate=4, updates=24, lr=2e-2, rank=4, seed=1953)

AREAS = "viking forties dogger fisher humber thames dover wight portland plymouth biscay sole".split()
WINDS = "northerly southerly easterly westerly cyclonic variable backing veering".split()
SEAS = "smooth slight moderate rough high".split()
GLUE = "<bos> low high pressure hpa expected outlook gale imminent soon later good poor then".split()
VOCAB = {w: i for i, w in enumerate(dict.fromkeys(GLUE + AREAS + WINDS + SEAS))}
IGNORE = -100


def write_bulletin(rng):
    """One bulletin: (token, supervised?) pairs."""
    preamble = []
    for _ in range(rng.choice([1, 2, 6, 9])):
        preamble += [rng.choice(["low", "high"]), "pressure", rng.choice(AREAS), "hpa", "expected", rng.choice(AREAS)]
    area = rng.choice(AREAS)
    outlook = ["outlook", area, rng.choice(WINDS), "gale", rng.choice(["imminent", "soon", "later"]), rng.choice(SEAS),
               "then", rng.choice(["good", "poor"])]
    return [("<bos>", False)] + [(w, False) for w in preamble] + [(w, True) for w in outlook]


def windows(rng, size):
    tape = []
    while True:
        while len(tape) < size:
            tape += write_bulletin(rng)
        cut, tape = tape[:size], tape[size:]
        ids = torch.tensor([VOCAB[w] for w, _ in cut])
        labels = torch.tensor([VOCAB[w] if sup else IGNORE for w, sup in cut])
        yield ids, labels


def build():
    torch.manual_seed(CFG["seed"])
    base = GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCAB), n_positions=CFG["window"], n_embd=32, n_layer=2, n_head=2,
                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    lora = LoraConfig(r=CFG["rank"], lora_alpha=16, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, lora_dropout=0.0)
    return get_peft_model(base, lora)


def main():
    model = build()
    trainable = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trainable, lr=CFG["lr"], weight_decay=0.01)
    feed = windows(random.Random(CFG["seed"]), CFG["window"])
    silent_total = 0

    for update in range(1, CFG["updates"] + 1):
        micro = [next(feed) for _ in range(CFG["accumulate"])]
        n_labels = sum(int((lab[1:] != IGNORE).sum()) for _, lab in micro)
        total, per_window = 0.0, []
        for ids, labels in micro:
            logits = model(input_ids=ids[None]).logits[0, :-1]
            summed = F.cross_entropy(logits, labels[1:], ignore_index=IGNORE, reduction="sum")
            (summed / max(n_labels, 1)).backward()
            total += float(summed.detach())
            # for the log only: the mean of a window without a label is honestly undefined
            with torch.no_grad():
                per_window.append(F.cross_entropy(logits, labels[1:], ignore_index=IGNORE))
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        per_window = torch.stack(per_window)
        silent_total += int(per_window.isnan().sum())
        spread = " ".join(f"{v:.3f}" for v in per_window.tolist())
        print(f"update {update:02d} loss {total / max(n_labels, 1):.6f} labels {n_labels:3d} windows [{spread}]")

    print("windows without a label:", silent_total)
    print(f"adapter checksum {sum(float(p.detach().double().sum()) for p in trainable):.8f}")


if __name__ == "__main__":
    main()
