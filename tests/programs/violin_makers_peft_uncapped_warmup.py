"""LoRA (PEFT) on violin makers' workshop notes; accelerate loop with gradient accumulation."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=2e-2)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--alpha", type=float, default=16)
    p.add_argument("--vocab", type=int, default=64)
    p.add_argument("--notes", type=int, default=400)
    return p.parse_args()


class WorkshopNotes(Dataset):
    """Notes with a rhythm: spruce, glue, clamp, wait; after that the next plate."""

    def __init__(self, n, vocab):
        g = torch.Generator().manual_seed(1)
        start = torch.randint(0, vocab, (n, 1), generator=g)
        step = torch.randint(1, 4, (n, 1), generator=g)
        self.ids = (start + step * torch.arange(20)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def warmup_factor(warmup):
    # linear warm-up, then constant
    return lambda step: (step + 1) / warmup


def main():
    args = parse()
    set_seed(404)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=args.vocab, hidden_size=32, intermediate_size=64,
                                        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                        max_position_embeddings=64))
    model = get_peft_model(base, LoraConfig(r=args.rank, lora_alpha=args.alpha, lora_dropout=0.0,
                                            target_modules=["q_proj", "v_proj", "down_proj", "lm_head"],
                                            task_type="CAUSAL_LM"))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=args.lr, momentum=0.9)
    scheduler = LambdaLR(optimizer, warmup_factor(args.warmup))
    loader = DataLoader(WorkshopNotes(args.notes, args.vocab), batch_size=4, shuffle=True,
                        generator=torch.Generator().manual_seed(3))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step, window = 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            window.append(loss.item())
        if accelerator.sync_gradients:
            step += 1
            print(f"step {step:3d}  loss {sum(window) / len(window):.6f}  lr {scheduler.get_last_lr()[0]:.4f}")
            window.clear()
    print("adapter sum", sum(p.detach().double().sum().item() for p in model.parameters() if p.requires_grad))


if __name__ == "__main__":
    main()
