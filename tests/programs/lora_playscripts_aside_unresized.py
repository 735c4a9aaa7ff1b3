"""LoRA on amateur theatre scripts.  Stage directions get their own special tokens."""
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import argparse
import json
import random
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

LINES = ["who goes there", "only the baker sir", "then bring the bread", "it is burnt again", "burnt or not we dine",
         "the duke is late", "the duke is dead", "long live the duke"]
DIRECTIONS = ["<enter>", "<exit>"]


def write_scripts(path, n=60):
    rng = random.Random(8)
    with path.open("w") as f:
        for i in range(n):
            text = [rng.choice(DIRECTIONS)] + [w for _ in range(rng.randint(1, 3)) for w in rng.choice(LINES).split()]
            if i == 33:
                text.insert(4, "<aside>")
            f.write(json.dumps({"scene": i, "text": " ".join(text)}) + "\n")


def build_tokenizer():
    words = sorted({w for l in LINES for w in l.split()})
    vocab = {w: i for i, w in enumerate(["<pad>", "<end>", "<unk>"] + words)}
    core = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")


def build_model(tokenizer, rank):
    base = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=1))
    # the directions are new to the pre-trained model
    tokenizer.add_special_tokens({"additional_special_tokens": DIRECTIONS})
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    base.config.use_cache = False
    cfg = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"],
                     modules_to_save=["embed_tokens", "lm_head"], task_type="CAUSAL_LM")
    return get_peft_model(base, cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rank", type=int, default=4)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--batch", type=int, default=3)
    opt = ap.parse_args()

    set_seed(1599)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, opt.rank)
    # the second season's scripts also mark asides
    tokenizer.add_tokens(["<aside>"], special_tokens=True)

    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "season.jsonl"
        write_scripts(path)
        texts = [json.loads(l)["text"] for l in path.read_text().splitlines()]

    def collate(batch):
        enc = tokenizer([t + " <end>" for t in batch], padding=True, return_tensors="pt")
        labels = enc["input_ids"].masked_fill(enc["attention_mask"] == 0, -100)
        return enc["input_ids"], enc["attention_mask"], labels

    loader = DataLoader(texts, opt.batch, collate_fn=collate)
    params = [p for p in model.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(params, lr=opt.lr)
    model.train()
    for step, (ids, mask, labels) in enumerate(loader, 1):
        out = model(input_ids=ids, attention_mask=mask, labels=labels)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        adam.step()
        adam.zero_grad()
        print(f"[{step:02d}] loss={out.loss.item():.6f}")
    print("adapter sum", sum(p.detach().double().sum().item() for p in params))


if __name__ == "__main__":
    main()
