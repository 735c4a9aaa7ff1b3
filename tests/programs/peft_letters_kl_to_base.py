"""LoRA on a tiny Llama: letters packed to blocks, only letters a typewriter has may be written, KL to the base model."""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import math
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(2)
BLOCK, ACC, STEPS, BOS = 48, 3, 18, 1
LETTERS = ["dear aunt the sea is calm here", "send money soon your loving son", "it rained again on sunday",
           "the cat had kittens", "yours truly", "we leave for genoa at dawn tell no one"]
encode = lambda s: [BOS] + [ord(c) - 94 if c != " " else 2 for c in s]
VOCAB = 40
banned = torch.zeros(VOCAB, dtype=torch.bool)
banned[30:] = True
banned[0] = True


def pack(gen):
    ids, doc, pos = [], [], []
    while len(ids) < BLOCK:
        t = encode(LETTERS[int(torch.randint(len(LETTERS), (1,), generator=gen))])
        if len(ids) + len(t) > BLOCK:
            break
        n = 1 + max(doc, default=-1)
        ids += t
        doc += [n] * len(t)
        pos += range(len(t))
    pad = BLOCK - len(ids)
    return ids + [0] * pad, doc + [-1] * pad, pos + list(range(pad))


def get(gen, rows=4):
    ids, doc, pos = (torch.tensor(c) for c in zip(*[pack(gen) for _ in range(rows)]))
    same = doc[:, :, None] == doc[:, None, :]
    allowed = (same & torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril())[:, None]
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))
    target = ids.roll(-1, 1)
    keep = (doc == doc.roll(-1, 1)) & (doc >= 0) & (torch.arange(BLOCK) < BLOCK - 1)
    return ids, pos, mask, target, keep


def logprobs(model, ids, pos, mask):
    z = model(input_ids=ids, position_ids=pos, attention_mask=mask).logits.float()
    return z.masked_fill(banned, float("-inf")).log_softmax(-1)


base = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                    pad_token_id=0, bos_token_id=BOS, eos_token_id=2, attn_implementation="eager"))
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj", "lm_head"],
                                        task_type="CAUSAL_LM"))
params = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params, lr=0.0)
gen = torch.Generator().manual_seed(9)
best = math.inf
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 1e-2 * min(1, (step + 1) / 4) * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    micro = [get(gen) for _ in range(ACC)]
    tokens = sum(m[-1].sum() for m in micro)
    total = kls = 0.0
    for ids, pos, mask, target, keep in micro:
        with torch.no_grad(), model.disable_adapter():
            ref = logprobs(model, ids, pos, mask)
        lp = logprobs(model, ids, pos, mask)
        nll = -lp.gather(-1, target.clamp(1, 29)[..., None])[..., 0]
        gap = (lp - ref).masked_fill(banned, 0.0)
        kl = (lp.exp() * gap).sum(-1)
        loss = ((nll + 0.05 * kl) * keep).sum() / tokens
        loss.backward()
        total += loss.item()
        kls += ((kl * keep).sum() / tokens).item()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    opt.zero_grad()
    best = min(best, total)
    print(f"{step:02d} loss={total:.4f} kl={kls:.4f} best={best:.4f}", flush=True)
