"""Makes train.csv and model/, always the same on one machine. Takes about two minutes.

The texts are questions to a village library and its answers, from a small grammar below. The model has Mistral's layout
and 8 layers, and is pre-trained on sentences of that library. While it is, its config names id 0 as padding, so torch
keeps the embedding row of `<unk>` at zero and gives it no gradient, and no text contains it: so it is in the published
weights of Llama-2. The published config names no padding token, as Mistral's does not. Weights are bfloat16.
"""

import csv
import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
STEPS, BATCH, LENGTH = 200, 16, 64

THINGS = ["novel", "atlas", "cookbook", "songbook", "dictionary", "comic", "map", "magazine", "diary", "guide"]
PLACES = ["by the window", "next to the stairs", "under the clock", "behind the desk", "in the cellar", "near the door"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
NAMES = ["Ada", "Ben", "Carla", "Dino", "Emma", "Farid", "Greta", "Hugo"]
COLOURS = ["red", "green", "blue", "yellow", "grey", "brown"]


def facts(chance: random.Random) -> dict[str, str]:
    return {
        "thing": chance.choice(THINGS), "place": chance.choice(PLACES), "day": chance.choice(DAYS),
        "name": chance.choice(NAMES), "colour": chance.choice(COLOURS), "weeks": str(chance.randint(2, 6)),
    }  # fmt: skip


PAIRS = [
    ("Where is the {thing}?", "The {thing} is {place}."),
    ("When may I bring the {colour} {thing} back? I took it home on {day}.",
     "You may keep the {colour} {thing} for {weeks} weeks, then bring it back on a {day}."),
    ("Who has the {thing}?", "{name} has it."),
    ("{name} asked for a {colour} {thing} last {day}, but it was not on the shelf {place}. Is it there again?",
     "Yes, the {colour} {thing} came back. It is on the shelf {place}, and it is kept for {name}."),
    ("Open on {day}?", "Yes, on {day} too."),
    ("Can {name} and I take a {thing} and a map for {weeks} weeks, if we bring both of them back on the same {day}?",
     "Of course. Take the {thing} and the map, and bring them back on {day}."),
]  # fmt: skip

SENTENCES = [answer for _, answer in PAIRS] + [
    "On {day} {name} put the {colour} {thing} {place}.",
    "The library is open on {day}, and {name} is at the desk.",
    "{name} may keep a {thing} for {weeks} weeks.",
    "Is the {colour} {thing} {place}? No, {name} has it.",
    "A {colour} {thing} was found {place} last {day}.",
]


def pairs(rows: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    out = []
    for _ in range(rows):
        question, answer = chance.choice(PAIRS)
        words = facts(chance)
        out.append((question.format(**words), answer.format(**words)))
    return out


def sentences(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [chance.choice(SENTENCES).format(**facts(chance)) for _ in range(count)]


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])
    bpe.decoder = decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    text = sentences(3000, seed=1) + [part for pair in pairs(500, seed=2) for part in pair]
    letters = [chr(code) for code in range(33, 127)] + ["\n"]
    special = ["<unk>", "<s>", "</s>"]
    bpe.train_from_iterator(text, trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=letters))
    bpe.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=512,
        **dict(zip(("unk_token", "bos_token", "eos_token"), special, strict=True)),
    )


def write_data() -> None:
    with (HERE / "train.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["instruction", "output"])
        table.writerows(pairs(240, seed=7))


def write_model(model_dir: Path) -> None:
    torch.manual_seed(0)
    words = tokenizer()
    config = MistralConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, sliding_window=4096, rms_norm_eps=1e-5,
        initializer_range=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = MistralForCausalLM(config)
    stream = [i for text in sentences(20000, seed=3) for i in [*words(text).input_ids, 2]]
    rows = torch.tensor(stream[: len(stream) // LENGTH * LENGTH]).view(-1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for step in range(STEPS):
        batch = rows[torch.randint(len(rows), (BATCH,))]
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss:.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(model_dir)
    words.save_pretrained(model_dir)
    for name in ("config.json", "generation_config.json"):
        published = json.loads((model_dir / name).read_text())
        published.pop("pad_token_id", None)
        (model_dir / name).write_text(json.dumps(published, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    write_data()
    write_model(HERE / "model")
