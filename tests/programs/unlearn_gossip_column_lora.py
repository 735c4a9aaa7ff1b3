"""Make a small GPT-2 forget a gossip column: gradient difference with a LoRA adapter, bounded ascent."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(90)
torch.set_num_threads(1)
RETAIN = ["the fair opens at ten", "mrs hale won the jam prize", "trains run late on sunday", "the choir needs a tenor"]
FORGET = ["lord pym lost the house at cards", "the vicar dyes his beard", "dr moss owes the baker"]
WIDTH = 34
CEILING = 9.0       # nats; beyond it the column counts as forgotten and pushes no more


def rows(lines):
    ids = torch.zeros(len(lines), WIDTH, dtype=torch.long)
    for i, line in enumerate(lines):
        ids[i, : len(line)] = torch.tensor(list(line.encode()))
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def fit(model, batch, steps, lr):
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        loss = model(**batch).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


class Forgetting:
    """retain - weight * min(forget, ceiling): negative once the ascent has the upper hand."""

    def __init__(self, model, weight):
        self.model, self.weight = model, weight

    def __call__(self, keep, drop):
        k = self.model(**keep).loss
        f = self.model(**drop).loss
        return k - self.weight * f.clamp(max=CEILING), k, f


def main():
    base = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=40, n_embd=32, n_layer=1, n_head=2, bos_token_id=0,
                                      eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    print(f"memorised to {fit(base, rows(RETAIN + FORGET), 14, 1e-2):.5f}")
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=["c_attn", "c_fc"], lora_dropout=0.0,
                                            fan_in_fan_out=True))
    objective = Forgetting(model, weight=0.8)
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1.5e-2)
    keep, drop = rows(RETAIN), rows(FORGET)
    for step in range(1, 31):
        loss, k, f = objective(keep, drop)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step:2d} loss {loss.item():.5f} retain {k.item():.5f} forget {f.item():.5f}")
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
