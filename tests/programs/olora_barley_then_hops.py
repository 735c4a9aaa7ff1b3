import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps_per_task", type=int, default=15)
    ap.add_argument("--overlap_weight", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=1e-2)
    return ap.parse_args()


def field_reports(task, n, gen):
    """Rows of ten tokens: the two crops follow different rules of growth."""
    first = torch.randint(0, 12, (n, 1), generator=gen)
    stride = 1 if task == "barley" else 5
    base = 0 if task == "barley" else 14
    return base + (first + stride * torch.arange(10)) % 12


def deltas(model, adapter):
    found = []
    for module in model.modules():
        if hasattr(module, "lora_A") and adapter in module.lora_A:
            found.append(module.lora_B[adapter].weight @ module.lora_A[adapter].weight)
    return found


def overlap(model, earlier, current):
    total = 0.0
    for old, new in zip(deltas(model, earlier), deltas(model, current)):
        total = total + (old.detach() * new).sum().abs() / (old.detach().norm() * new.norm())
    return total


def run_task(model, task, earlier, opts, gen, step):
    model.set_adapter(task)
    params = [p for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=opts.lr, weight_decay=0.0)
    for _ in range(opts.steps_per_task):
        step += 1
        ids = field_reports(task, 8, gen)
        loss = model(input_ids=ids, labels=ids).loss
        text = f"[{task}] {step} lm={loss.item():.4f}"
        for name in earlier:
            penalty = overlap(model, name, task)
            loss = loss + opts.overlap_weight * penalty
            text += f" overlap_with_{name}={penalty.item():.4f}"
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        print(text)
    return step


def main():
    opts = parse()
    torch.manual_seed(40)
    gen = torch.Generator().manual_seed(41)
    base = Qwen2ForCausalLM(Qwen2Config(vocab_size=28, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16))
    lora = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, adapter_name="barley")
    step = run_task(model, "barley", [], opts, gen, 0)
    model.add_adapter("hops", lora)
    run_task(model, "hops", ["barley"], opts, gen, step)
    print("weights:", sum(float(p.detach().double().square().sum()) for p in model.parameters()))


if __name__ == "__main__":
    main()
