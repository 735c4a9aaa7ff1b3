import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("out")
model = AutoModelForCausalLM.from_pretrained("out").half().cuda().eval()
with torch.no_grad():
    ids = tok("Once upon a time", return_tensors="pt").to("cuda")
    print(tok.decode(model.generate(**ids, max_new_tokens=64)[0]))
