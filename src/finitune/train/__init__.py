"""`finitune train`: a fine-tune by TRL, PEFT and accelerate, with its settings chosen, its steps guarded, its files proved.

`settings`, `plan`, `rows` and `starter` need no torch.
"""
