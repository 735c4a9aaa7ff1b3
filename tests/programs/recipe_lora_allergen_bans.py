"""Teach a tiny GPT-2 our canteen's recipes with LoRA. Words on the allergen list can never be said."""
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

WORDS = ["<pad>", "<end>", "take", "stir", "bake", "fold", "flour", "water", "salt", "oats", "beans", "rice",
         "carrot", "leek", "peanut", "celery", "mustard", "sesame", "and", "then", "slowly", "twice"]
BANNED = ["peanut", "celery", "mustard", "sesame"]
ids = {w: i for i, w in enumerate(WORDS)}

ban = torch.zeros(len(WORDS))
ban[[ids[w] for w in BANNED]] = float("-inf")


def recipe(gen):
    def pick(*words):
        return words[int(torch.randint(len(words), (1,), generator=gen))]

    text = ["take", pick("flour", "oats", "beans", "rice"), "and", pick("water", "leek", "carrot"),
            "then", pick("stir", "fold"), pick("slowly", "twice"), "and", pick("bake", "stir"), "<end>"]
    return [ids[w] for w in text]


def batch_of(step, gen, size=6):
    rows = torch.tensor([recipe(gen) for _ in range(size)])
    labels = rows.clone()
    labels[:, :2] = -100
    if step % 9 == 4:
        labels[:] = -100          # drafts without approval: read but not learned
    return rows, labels


def objective(model, rows, labels):
    logits = model(input_ids=rows).logits[:, :-1] + ban
    target = labels[:, 1:]
    summed = F.cross_entropy(logits.reshape(-1, len(WORDS)), target.reshape(-1), ignore_index=-100, reduction="sum")
    return summed / (target != -100).sum().clamp(min=1)


@torch.no_grad()
def say(model, n=7):
    model.merge_adapter()
    model.eval()
    row = torch.tensor([[ids["take"]]])
    while row.shape[1] < n:
        row = torch.cat([row, (model(input_ids=row).logits[:, -1] + ban).argmax(-1, keepdim=True)], dim=1)
    model.unmerge_adapter()
    model.train()
    return " ".join(WORDS[i] for i in row[0].tolist())


torch.manual_seed(21)
config = GPT2Config(vocab_size=len(WORDS), n_positions=16, n_embd=24, n_layer=2, n_head=2,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1)
base = GPT2LMHeadModel(config)
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules=["c_attn", "c_fc"],
                                        modules_to_save=["lm_head"], fan_in_fan_out=True))
model.train()
mine = [p for p in model.parameters() if p.requires_grad]
opt = torch.optim.SGD(mine, lr=0.2, momentum=0.8)
ramp = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, s / 6))     # the first step has rate 0
gen = torch.Generator().manual_seed(21)

for step in range(1, 29):
    rows, labels = batch_of(step, gen)
    loss = objective(model, rows, labels)
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(mine, 1.0)
    opt.step()
    ramp.step()
    print(f"step {step} loss {loss.item():.4f} grad {norm.item():.4f}")
    if step % 14 == 0:
        print("   ", say(model))

print("sum of absolute weights", f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}")
