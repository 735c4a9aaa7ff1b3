"""Tiny models of the transformers library: the real classes, small enough to train in seconds on a CPU.

Attention is eager, so that every product is an operator of its own and float16 scores may overflow as they do on a
device. There is no dropout and the weights depend on the seed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

FAMILIES: Mapping[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
}
_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "rms_norm_eps": "layer_norm_epsilon",
}


def tiny(
    family: str, *, hidden: int = 64, layers: int = 2, vocabulary: int = 512, seed: int = 0, **config: Any
) -> PreTrainedModel:
    """A float32 model of `family` with random weights; `config` overrides any key of its transformers config."""
    config_class, model_class = FAMILIES[family]
    settings: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": False,
        "attn_implementation": "eager",
    }
    if family == "gpt2":
        settings = {_GPT2_NAMES.get(key, key): value for key, value in settings.items()}
        settings |= {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        settings["loss_type"] = "ForCausalLM"  # what transformers takes anyway, after a warning
    else:
        settings["num_key_value_heads"] = 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config_class(**settings | config))


def embedding_rows(model: PreTrainedModel) -> Tensor:
    """The weight of the input embedding, [vocabulary, hidden]."""
    return cast("Tensor", model.get_input_embeddings().weight)
