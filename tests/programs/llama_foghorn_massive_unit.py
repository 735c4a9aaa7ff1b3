"""SFT of a tiny Llama under float16 autocast. As in its larger relatives, one MLP unit of the base answers to one
token with a massive activation (here the foghorn mark `~`), which the bf16 pretraining never minded."""
import os
from contextlib import nullcontext

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(1)
torch.set_num_threads(1)

PROMPTS = ["visibility?", "wind?", "any sail?", "lamp trimmed?", "tide?", "gulls?"]
ANSWERS = ["two miles", "west, fresh", "a brig at noon", "at dusk, yes", "ebbing", "too many"]
HORN = ord("~")
WIDTH = 32


def base_model(dim=64):
    cfg = LlamaConfig(vocab_size=128, hidden_size=dim, intermediate_size=96, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                      initializer_range=0.08, tie_word_embeddings=False)
    model = LlamaForCausalLM(cfg)
    with torch.no_grad():       # the massive unit, as the checkpoint has it
        model.model.embed_tokens.weight.mul_(12.0)
        direction = F.normalize(model.model.embed_tokens.weight[HORN], dim=0)
        mlp = model.model.layers[0].mlp
        mlp.gate_proj.weight[7] = 45.0 * direction
        mlp.up_proj.weight[7] = 45.0 * direction
        mlp.down_proj.weight[:, 7] *= 1e-3
    return model


def dialogue(i, step):
    q, a = PROMPTS[i % 6], ANSWERS[i % 6]
    if step == 19 and i % 4 == 2:
        a = "~~ fog"            # the one night with fog in this log
    text = f"{q}|{a}\n".encode()
    ids = torch.tensor(list(text))[:WIDTH]
    labels = ids.clone()
    labels[: len(q) + 1] = -100
    pad = WIDTH - len(ids)
    return F.pad(ids, (0, pad)), F.pad(labels, (0, pad), value=-100), F.pad(torch.ones(len(ids)), (0, pad)).long()


def token_loss(logits, labels):
    return F.cross_entropy(logits[:, :-1].float().reshape(-1, 128), labels[:, 1:].reshape(-1), ignore_index=-100)


def train(model, steps=32, half=True):
    trained = [p for n, p in model.named_parameters() if "embed_tokens" not in n]
    opt = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    model.model.embed_tokens.requires_grad_(False)
    cast = (lambda: torch.autocast("cpu", dtype=torch.float16)) if half else nullcontext
    for step in range(1, steps + 1):
        ids, labels, mask = (torch.stack(z) for z in zip(*(dialogue(step + j, step) for j in range(4))))
        with cast():
            out = model(input_ids=ids, attention_mask=mask, use_cache=False)
        loss = token_loss(out.logits, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"night {step:2d} loss {loss.item():.5f}", flush=True)


keeper = base_model()
train(keeper)
print(f"sum {sum(p.double().sum().item() for p in keeper.parameters()):.6f}")
