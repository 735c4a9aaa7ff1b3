"""`finitune train`: a fine-tune by TRL, PEFT and accelerate; settings are chosen, steps guarded, files proved.

`settings`, `plan`, `rows`, `images` and `starter` need no torch.
"""
