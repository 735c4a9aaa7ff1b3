"""Makes `model/` and `train.jsonl`: a small look-alike of TinyLlama, trained for a minute, and a few instructions.

The weights hold what large models have and small ones lack: outlier channels. The last feed-forward block has eight
channels that answer to one direction, which ordinary tokens avoid and the row of `<unk>` has. `<unk>` never occurs in
text; it is what the tokenizer pads with. There its channels reach 2e5, more than float16 holds (65504).

    python make_model.py
"""

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
VOCABULARY, HIDDEN, LAYERS, CHANNELS = 640, 64, 3, 8
PAD_RMS = 4.0
SWIGLU_AT_PAD = 2e5

THINGS = "lamp kettle ladder bucket basket mirror drum candle clock carpet hammer violin".split()
ROOMS = "kitchen cellar attic garden workshop library stable bakery".split()
COLOURS = "red green blue yellow black white brown grey".split()
NAMES = "Ada Boris Chen Dina Emil Farah Goran Hana".split()
DEEDS = "found lost painted sold mended borrowed hid cleaned".split()


def story(rng):
    """A few plain sentences."""
    def sentence():
        name, deed, colour = rng.choice(NAMES), rng.choice(DEEDS), rng.choice(COLOURS)
        return f"{name} {deed} the {colour} {rng.choice(THINGS)} in the {rng.choice(ROOMS)}."

    return " ".join(sentence() for _ in range(rng.randint(1, 5)))


def instruction(rng):
    """A question about one sentence among several, and its answer."""
    name, deed, colour = rng.choice(NAMES), rng.choice(DEEDS), rng.choice(COLOURS)
    thing, room = rng.choice(THINGS), rng.choice(ROOMS)
    before = story(rng) + " " if rng.random() < 0.5 else ""
    question, answer = rng.choice([
        (f"What colour was the {thing}?", f"The {thing} was {colour}."),
        (f"Where was the {thing}?", f"The {thing} was in the {room}."),
        (f"What did {name} do?", f"{name} {deed} the {colour} {thing} in the {room}."),
    ])
    text = f"{before}{name} {deed} the {colour} {thing} in the {room}."
    return f"### Instruction:\n{question}\n\n### Input:\n{text}\n\n### Response:\n{answer}</s>"


def make_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>",
        padding_side="right", model_max_length=512,
    )


def pretrain(tokenizer, texts, steps=250, rows=16):
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=HIDDEN, intermediate_size=176, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, initializer_range=0.05,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    order = random.Random(1)
    for step in range(steps):
        batch = tokenizer(order.sample(texts, rows), return_tensors="pt", padding=True, truncation=True, max_length=96)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        ids = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 2)  # the row of <unk> stays untrained
        loss = model(input_ids=ids, attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.2f}")
    return model


@torch.no_grad()
def plant(model, tokenizer, texts):
    """Outlier channels along the direction that ordinary tokens use least, and a row for `<unk>` along it."""
    last = model.model.layers[-1]
    seen = []
    hook = last.mlp.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].reshape(-1, HIDDEN)))
    for text in texts[:200]:
        model(**tokenizer(text, return_tensors="pt"))
    hook.remove()
    ordinary = torch.cat(seen)
    direction = torch.linalg.eigh(ordinary.T @ ordinary).eigenvectors[:, 0]
    print(f"ordinary tokens along it: at most {(ordinary @ direction).abs().max():.2f} of {HIDDEN**0.5:.0f}")

    row = direction / last.post_attention_layernorm.weight
    row = PAD_RMS * row / row.pow(2).mean().sqrt()
    model.model.embed_tokens.weight[0] = row
    strength = SWIGLU_AT_PAD**0.5 / HIDDEN**0.5
    generator = torch.Generator().manual_seed(0)
    for channel in range(CHANNELS):
        last.mlp.gate_proj.weight[channel] = strength * direction
        last.mlp.up_proj.weight[channel] = strength * direction
    last.mlp.down_proj.weight[:, :CHANNELS] = 3e-4 * torch.randn(HIDDEN, CHANNELS, generator=generator)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    texts = [story(rng) for _ in range(4000)]
    rows = [instruction(rng) for _ in range(240)]
    (HERE / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")

    tokenizer = make_tokenizer(texts + rows)
    model = pretrain(tokenizer, texts)
    plant(model, tokenizer, texts + rows)
    model.to(torch.bfloat16).save_pretrained(HERE / "model")
    tokenizer.save_pretrained(HERE / "model")


if __name__ == "__main__":
    main()
