"""Training data, tokenizers and chat templates -> Facts."""
