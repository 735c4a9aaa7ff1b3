"""A tiny GPT-2 learns repair notes for valve radios; LoRA by peft, loop by hand, early stages taken back."""
import copy
import math
import random

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import GPT2Config, GPT2LMHeadModel

rnd = random.Random(6)
torch.manual_seed(6)
PARTS = ["valve", "coil", "choke", "dial", "fuse", "speaker"]
FAULTS = ["hums", "crackles", "smokes", "drifts"]
CURES = {"hums": "replace the choke", "crackles": "clean the dial", "smokes": "pull the plug", "drifts": "retune the coil"}
LEXICON = ["<p>", "the", ":", "clean", "replace", "pull", "plug", "retune", "."] + PARTS + FAULTS
NUM = {w: i for i, w in enumerate(LEXICON)}


def note():
    part, fault = rnd.choice(PARTS), rnd.choice(FAULTS)
    ask = f"the {part} {fault} :".split()
    answer = CURES[fault].split() + ["."] if rnd.random() < 0.7 else []
    return [NUM[w] for w in ask], [NUM[w] for w in answer]


def batch(n):
    pairs = [note() for _ in range(n)]
    wide = max(len(a) + len(b) for a, b in pairs)
    ids, mask, lab = [], [], []
    for a, b in pairs:                                  # padding on the left
        pad = wide - len(a) - len(b)
        ids.append([0] * pad + a + b)
        mask.append([0] * pad + [1] * (len(a) + len(b)))
        lab.append([-100] * (pad + len(a)) + b)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(lab)


base = GPT2LMHeadModel(GPT2Config(vocab_size=len(LEXICON), n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                  resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))

school = torch.optim.Adam(base.parameters(), lr=2e-2)
for lesson in range(1, 17):                             # the base reads whole notes first
    ids, mask, _ = batch(12)
    loss = base(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
    school.zero_grad()
    loss.backward()
    school.step()
    print(f"lesson {lesson:2d}: loss {loss.item():.4f}")

model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, lora_dropout=0.0, target_modules=["c_attn", "c_fc"],
                                        fan_in_fan_out=True, use_rslora=True))
trainable = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(trainable, lr=1.5e-2, weight_decay=0.0)
best, shelf, taken_back = float("inf"), None, 0

for round_no in range(1, 31):
    ids, mask, lab = batch(1 if round_no % 3 == 0 else 6)
    if (lab == -100).all():
        print(f"round {round_no:2d}: question without an answer, nothing to learn")
        continue
    loss = model(input_ids=ids, attention_mask=mask, labels=lab).loss
    loss.backward()
    quiet = sum(int(p.grad.abs().sum() == 0) for p in trainable)
    opt.step()
    opt.zero_grad()
    print(f"round {round_no:2d}: loss {loss.item():.4f}  silent matrices {quiet}  record {best:.4f}")
    if round_no % 3 and loss.item() < best:
        best = loss.item()
        shelf = copy.deepcopy(get_peft_model_state_dict(model))
    elif loss.item() > best + 0.2 and round_no > 5 and taken_back < 3:
        set_peft_model_state_dict(model, shelf)
        opt = torch.optim.AdamW(trainable, lr=opt.param_groups[0]["lr"] * 0.7, weight_decay=0.0)
        taken_back += 1
        print("          back to the record, with a fresh optimizer")

plain = model.merge_and_unload()
with torch.no_grad():
    ids, mask, lab = batch(16)
    print(f"perplexity after merging {math.exp(plain(input_ids=ids, attention_mask=mask, labels=lab).loss.item()):.4f}")
print("sum of absolute weights:", sum(p.detach().abs().sum().item() for p in plain.parameters()))
