"""What containers of the user's hold, also of one that holds itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree


def leaves_of(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """As `pytree.tree_leaves`; of a container that holds itself each part once."""
    try:
        return pytree.tree_leaves(value, is_leaf=is_leaf)
    except RecursionError:
        seen: dict[int, Any] = {}

        def is_known(node: Any) -> bool:
            if id(node) in seen or (is_leaf is not None and is_leaf(node)):
                return True
            seen[id(node)] = node
            return False

        return [leaf for leaf in pytree.tree_leaves(value, is_leaf=is_known) if not isinstance(leaf, dict | list)]
