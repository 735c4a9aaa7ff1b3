"""KTO on thumbs-up / thumbs-down logs, LoRA adapters on a small Llama."""
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(11)
BETA, W_UP, W_DOWN = 0.1, 1.0, 1.33
PAD = 0

config = LlamaConfig(vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
model = get_peft_model(LlamaForCausalLM(config),
                       LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0,
                                  target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def feedback_log(n=80):
    g = torch.Generator().manual_seed(11)
    rows = []
    for _ in range(n):
        p, r = (int(torch.randint(3, 7, (1,), generator=g)), int(torch.randint(3, 9, (1,), generator=g)))
        ids = torch.randint(3, 96, (p + r,), generator=g).tolist()
        rows.append(dict(ids=ids, prompt=p, up=bool(torch.rand(1, generator=g) < 0.6)))
    return rows


def collate(rows):
    width = max(len(r["ids"]) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), -100)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        n = len(r["ids"])
        ids[i, :n] = torch.tensor(r["ids"])
        labels[i, r["prompt"]:n] = ids[i, r["prompt"]:n]
        mask[i, :n] = 1
    return ids, mask, labels, torch.tensor([r["up"] for r in rows])


def reply_logps(ids, mask, labels):
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    target = labels[:, 1:]
    keep = target != -100
    lp = logits.log_softmax(-1).gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (lp * keep).sum(-1)


def kto_loss(policy, reference, up):
    ratio = policy - reference
    kl = ratio.mean().clamp(min=0).detach()
    desirable = 1 - torch.sigmoid(BETA * (ratio[up] - kl))
    undesirable = 1 - torch.sigmoid(BETA * (kl - ratio[~up]))
    return W_UP * desirable.mean() + W_DOWN * undesirable.mean()


opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
log = feedback_log()
for step in range(20):
    ids, mask, labels, up = collate(log[4 * step:4 * step + 4])
    with torch.no_grad(), model.disable_adapter():
        ref = reply_logps(ids, mask, labels)
    loss = kto_loss(reply_logps(ids, mask, labels), ref, up)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    print(f"step {step + 1:2d} kto {loss.item():.4f} thumbs up {int(up.sum())}/4")
print("adapter", sum(float((p.detach() ** 2).sum()) for p in model.parameters() if p.requires_grad))
