"""Ask the fine-tuned model, as the web demo does: sampling, in the dtype it was trained in."""

import argparse

import torch
from dataset import encode, pixels
from modeling_minicpmv_tiny import MiniCPMV
from peft import PeftModel
from transformers import AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="model")
parser.add_argument("--adapter")
parser.add_argument("--image")
parser.add_argument("--prompt", default="What does it say?")
parser.add_argument("--dtype", default="float16")
parser.add_argument("--attn_implementation", default="eager")
parser.add_argument("--float32_modules", nargs="*", default=[])
args = parser.parse_args()

torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(args.model)
model = MiniCPMV.from_pretrained(
    args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attn_implementation
)
model.float32_modules = args.float32_modules
if args.adapter:
    model = PeftModel.from_pretrained(model, args.adapter, autocast_adapter_dtype=False)
model = model.to(getattr(torch, args.dtype)).eval()

content = f"<image>\n{args.prompt}" if args.image else args.prompt
ids, _ = encode([{"role": "user", "content": content}], tokenizer, model.config.query_num)
ids += tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
inputs = {"input_ids": torch.tensor([ids])}
if args.image:
    inputs["pixel_values"] = pixels(args.image, model.config.vision_config.image_size).unsqueeze(0).to(model.dtype)
answer = model.generate(
    **inputs, do_sample=True, top_p=0.8, temperature=0.7, max_new_tokens=16, pad_token_id=tokenizer.pad_token_id
)
print("assistant:", tokenizer.decode(answer[0, len(ids) :], skip_special_tokens=True).strip())
