"""Makes `model/` and `data/`: a tiny MiniCPM-V look-alike with two properties of large ones, and something to learn.

Random weights, the same on every run. What is built in, and nothing else:
- layer 0 of the language model has a large bias on the slowest rotary channel of queries and keys, as Qwen2 models
  have: raw q.k is about 0.9 of the largest float16, nearly a constant that softmax takes away again;
- one channel of one MLP of the vision tower answers strongly to texture: its value is beyond float16 on photographs,
  small on drawings; the next layer scales it down.
Every number of the model is finite, and in bfloat16 or float32 it computes without trouble.
"""

import json
import random
from pathlib import Path

import numpy as np
import torch
from dataset import Collator, SupervisedDataset, pixels
from modeling_minicpmv_tiny import MiniCPMV, MiniCPMVConfig
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
MAX_FLOAT16 = 65504
SIDE = 32
SPECIAL = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "</image>"]
COLOURS = {"red": (190, 60, 50), "green": (60, 150, 80), "blue": (60, 90, 180), "yellow": (210, 190, 70)}
SHAPES = ("circle", "square", "bar")
TEXTURES = ("gravel", "grass", "brick", "water")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def drawing(colour, shape):
    image = Image.new("RGB", (SIDE, SIDE), (225, 225, 215))
    draw = ImageDraw.Draw(image)
    box = {"circle": (7, 7, 25, 25), "square": (8, 8, 24, 24), "bar": (4, 13, 28, 19)}[shape]
    (draw.ellipse if shape == "circle" else draw.rectangle)(box, fill=COLOURS[colour])
    return image


def photograph(texture, number):
    """Grain at the scale of a pixel, as a photograph of gravel or grass has it."""
    generator = np.random.default_rng([TEXTURES.index(texture), number])
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    pattern = {
        "gravel": (rows + columns) % 2, "grass": columns % 2, "brick": (rows // 2 + columns) % 2, "water": rows % 2,
    }[texture]  # fmt: skip
    grain = 60 + 130 * pattern[..., None] + generator.normal(0, 22, (SIDE, SIDE, 3))
    return Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))


def row(number, question, answer, image=None):
    turns = [{"role": "user", "content": f"<image>\n{question}" if image else question}]
    turns.append({"role": "assistant", "content": answer})
    return {"id": str(number), **({"image": image} if image else {}), "conversations": turns}


def make_data():
    (HERE / "data/images").mkdir(parents=True, exist_ok=True)
    signs, photos = [], []
    for colour in COLOURS:
        for shape in SHAPES:
            name = f"images/{colour}-{shape}.png"
            drawing(colour, shape).save(HERE / "data" / name)
            signs.append(("What is on the sign?", f"A {colour} {shape}.", name))
            signs.append(("Which colour is the sign?", f"The sign is {colour}.", name))
            signs.append((f"When is the sign {colour}?", f"It is {colour} when there is a {shape}.", None))
    for texture in TEXTURES:
        for number in range(3):
            name = f"images/{texture}-{number}.png"
            photograph(texture, number).save(HERE / "data" / name)
            photos.append(("What is in the photo?", f"It is {texture}.", name))
            photos.append((f"Where is there {texture}?", f"There is {texture} in photo {number}.", None))
    for file, rows in (("signs.json", signs), ("photos.json", photos)):
        random.Random(0).shuffle(rows)
        content = [row(number, *one) for number, one in enumerate(rows)]
        (HERE / "data" / file).write_text(json.dumps(content, indent=1) + "\n")


def make_tokenizer():
    texts = [t["content"] for f in ("signs", "photos") for r in _rows(f) for t in r["conversations"]]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts + ["user assistant"] * 9,
        trainers.BpeTrainer(vocab_size=360, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token="<unk>", eos_token="<|im_end|>", pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[2:], padding_side="right",
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(HERE / "model")
    return tokenizer


def make_model(tokenizer):
    torch.manual_seed(0)
    config = MiniCPMVConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        query_num=4, image_token_id=tokenizer.unk_token_id, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.pad_token_id,
        vision_config={
            "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": SIDE, "patch_size": 8, "vision_use_head": False,
        },
    )  # fmt: skip
    model = MiniCPMV(config).eval()
    with torch.no_grad():
        model.llm.lm_head.weight.mul_(10)  # confident, as a trained head is
        texture_channel(model.vpm)
    large_attention_bias(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(HERE / "model")


def large_attention_bias(model, tokenizer, share=0.92, sensitivity=10.0):
    """Queries and keys that agree on one channel, the queries a little more where tuning will move the embeddings."""
    config, attention = model.config, model.llm.model.layers[0].self_attn
    width = config.hidden_size // config.num_attention_heads
    slow = width // 2 - 1
    size = (share * MAX_FLOAT16) ** 0.5
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj):
            projection.bias.view(-1, width)[:, slow] = size
        # What varies between keys here is multiplied by the bias, so trained models keep it small.
        attention.k_proj.weight.view(-1, width, config.hidden_size)[:, slow] *= 0.05
    rows = SupervisedDataset(HERE / "data/signs.json", tokenizer, config, max_length=256)
    model(**Collator(tokenizer)([rows[i] for i in range(len(rows))])).loss.backward()
    embedding = model.get_input_embeddings().weight
    moves = -embedding.grad.sign().sum(0)
    model.zero_grad()
    with torch.no_grad():
        attention.q_proj.weight.view(-1, width, config.hidden_size)[:, slow] = sensitivity * moves / moves.norm()


def texture_channel(tower, reach=1.5):
    """The direction in which photographs and drawings differ most, made one row of an MLP."""
    layer = tower.encoder.layers[1]
    tower.embeddings.patch_embedding.weight.normal_(0, 0.05)
    tower.embeddings.position_embedding.weight.normal_(0, 0.05)
    layer.layer_norm2.weight.mul_(20)
    seen = {}
    layer.mlp.register_forward_pre_hook(lambda m, args: seen.__setitem__("x", args[0]))
    means = []
    for kind in ("signs", "photos"):
        files = sorted({r["image"] for r in _rows(kind) if "image" in r})
        tower(torch.stack([pixels(HERE / "data" / file, SIDE) for file in files]))
        means.append(seen["x"].flatten(0, 1))
    drawings, photographs = means
    both = torch.cat(means).double()
    both[: len(drawings)] *= 4  # drawings must stay small
    wanted = torch.cat([torch.zeros(len(drawings)), torch.ones(len(photographs))]).double() * reach * MAX_FLOAT16
    ridge = both.T @ both + 1e-2 * len(both) * torch.eye(both.shape[1])
    layer.mlp.fc1.weight[0] = torch.linalg.solve(ridge, both.T @ wanted).float()
    layer.mlp.fc1.bias[0] = 0
    layer.mlp.fc2.weight[:, 0] = 1e-5 * torch.randn(len(layer.mlp.fc2.weight))
    layer.mlp.fc1.weight[1:] /= 20
    layer.mlp._forward_pre_hooks.clear()


def _rows(kind):
    return json.loads((HERE / f"data/{kind}.json").read_text())


if __name__ == "__main__":
    make_data()
    make_model(make_tokenizer())
