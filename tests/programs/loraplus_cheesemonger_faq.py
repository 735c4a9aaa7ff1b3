"""LoRA+ on a tiny GPT-2: B learns faster than A by a ratio. Question/answer lines of a cheesemonger."""
import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

LINES = [
    "does brie freeze? no, the paste weeps",
    "how long keeps comte? a month in paper",
    "is the rind of mimolette eaten? rarely",
    "which wine for stilton? port, or a pear",
    "why does munster smell? it is washed",
    "can i melt halloumi? it squeaks, no",
    "what is a tomme? a small round wheel",
    "does feta age? in brine, for months",
]


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=3e-2)
    ap.add_argument("--loraplus-ratio", type=float, default=64.0)
    ap.add_argument("--rank", type=int, default=8)
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--warmup", type=int, default=20)
    return ap.parse_args()


def encode(lines, width=40):
    ids = torch.zeros(len(lines), width, dtype=torch.long)
    for i, line in enumerate(lines):
        raw = torch.tensor(list(line.encode()))[:width]
        ids[i, : len(raw)] = raw
    labels = ids.masked_fill(ids == 0, -100)
    return ids, labels


def loraplus_groups(model, lr, ratio):
    a = [p for n, p in model.named_parameters() if "lora_A" in n]
    b = [p for n, p in model.named_parameters() if "lora_B" in n]
    return [{"params": a, "lr": lr}, {"params": b, "lr": lr * ratio}]


def main():
    args = parse()
    torch.manual_seed(5)
    torch.set_num_threads(1)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=48, n_embd=32, n_layer=2, n_head=2,
                                      resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                      bos_token_id=0, eos_token_id=0))
    ids, labels = encode(LINES)

    # a short pass over the plain base so that there is something to adapt
    warm = torch.optim.AdamW(base.parameters(), lr=3e-3)
    for k in range(8):
        warm.zero_grad()
        loss = base(input_ids=ids[k % 2 :: 2], labels=labels[k % 2 :: 2]).loss
        loss.backward()
        warm.step()
        print(f"base {k + 1:2d} loss {loss.item():.6f}")

    model = get_peft_model(base, LoraConfig(r=args.rank, lora_alpha=64, use_rslora=True, lora_dropout=0.0,
                                            target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True))
    opt = torch.optim.SGD(loraplus_groups(model, args.lr, args.loraplus_ratio), momentum=0.9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / args.warmup) ** 2)
    for step in range(1, args.steps + 1):
        pick = torch.tensor([(step * 3 + j) % len(LINES) for j in range(4)])
        logits = model(input_ids=ids[pick]).logits[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, 128), labels[pick][:, 1:].reshape(-1), ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"lora {step:2d} lr_b {opt.param_groups[1]['lr']:.4f} loss {loss.item():.6f}")
    print("weights", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
