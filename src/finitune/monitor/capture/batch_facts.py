"""Facts of a captured batch and of the weights that it met, as JSON. Each part is read by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from finitune.facts import Batching
from finitune.facts_json import facts_as_json
from finitune.monitor.capture.step import Call, Capture
from finitune.monitor.probes.embeddings import input_embedding
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.live_facts import batch_facts
from finitune.monitor.probes.padding import Padding, padding_of

_LABELS = (".labels", "['labels']")
"""Of a batch that is one argument, for a model that computes its loss itself."""


def facts_of_batch(model: nn.Module | None, capture: Capture) -> dict[str, Any]:
    """Tokens, their embedding rows, labels, padding, and the weights that stand out; of micro-steps whose loss is bad,
    where there are any.
    """
    micro_steps = [m for m in capture.micro_steps if m.root is not None and not is_finite(m.root)]
    micro_steps = micro_steps or capture.micro_steps
    calls = [call for micro in micro_steps for call in micro.calls]
    call = next((c for c in calls if c.token_ids() is not None), calls[0] if calls else None)
    ids = call.token_ids() if call else None
    labels = call.kwargs.get("labels") if call else None
    with torch.no_grad():
        targets = [t for m in micro_steps if m.objective for t in m.objective.targets]
        if call is not None and labels is None:
            targets += [t for name, t in call.named_inputs() if name.endswith(_LABELS) and t.dtype == torch.int64]
        embedding = None if model is None else input_embedding(model)
        padding = None if call is None or ids is None else padding_of(ids, call.mask())
        facts = batch_facts(model, embedding, ids, labels, targets, None if padding is None else padding.where)
        if padding is not None and call is not None:
            facts = replace(facts, batching=_batching(call, padding))
        return facts_as_json(facts)


def _batching(call: Call, padding: Padding) -> Batching:
    """How the rows of the captured batch were filled up. Without a mask that is known to be one it is not known whether
    padding is seen.
    """
    return Batching(
        padding_side=padding.side,
        pad_id=padding.token,
        padded_rows=padding.rows,
        pads_attended=True if padding.attended is None and not call.may_be_masked() else padding.attended,
        source="the captured batch",
    )
