"""Conversations about images, in the JSON format of MiniCPM-V's fine-tuning code."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

IMAGE, UNK = "<image>", "<unk>"
IGNORE = -100


def pixels(path, side):
    """An image file as a tensor [3, side, side] in [-1, 1], as SigLIP takes it."""
    picture = Image.open(path).convert("RGB").resize((side, side))
    return torch.from_numpy(np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1.0)


def encode(turns, tokenizer, queries):
    """Token ids and labels of one conversation; only the assistant's turns are learned."""
    ids, labels = [], []
    for turn in turns:
        content = turn["content"].replace(IMAGE, f"{IMAGE}{UNK * queries}</image>")
        head = tokenizer(f"<|im_start|>{turn['role']}\n", add_special_tokens=False)["input_ids"]
        body = tokenizer(f"{content}<|im_end|>\n", add_special_tokens=False)["input_ids"]
        ids += head + body
        labels += [IGNORE] * len(head) + (body if turn["role"] == "assistant" else [IGNORE] * len(body))
    return ids, labels


class SupervisedDataset(torch.utils.data.Dataset):
    def __init__(self, path, tokenizer, config, max_length):
        self.folder = Path(path).parent
        self.rows = json.loads(Path(path).read_text())
        self.tokenizer, self.config, self.max_length = tokenizer, config, max_length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        ids, labels = encode(row["conversations"], self.tokenizer, self.config.query_num)
        item = {"input_ids": ids[: self.max_length], "labels": labels[: self.max_length]}
        if "image" in row:
            item["pixel_values"] = pixels(self.folder / row["image"], self.config.vision_config.image_size)
        return item


class Collator:
    def __init__(self, tokenizer):
        self.pad = tokenizer.pad_token_id

    def __call__(self, items):
        length = max(len(item["input_ids"]) for item in items)
        fill = lambda key, value: torch.tensor([item[key] + [value] * (length - len(item[key])) for item in items])
        ids = fill("input_ids", self.pad)
        batch = {"input_ids": ids, "labels": fill("labels", IGNORE), "attention_mask": (ids != self.pad).long()}
        images = [item["pixel_values"] for item in items if "pixel_values" in item]
        return {**batch, "pixel_values": torch.stack(images)} if images else batch
