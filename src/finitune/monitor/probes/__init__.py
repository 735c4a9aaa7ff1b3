"""Statistics on tensors, cheap enough for every step."""
