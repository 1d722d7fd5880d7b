"""The two ways to pair the channels of a head, and the permutation between them.

``"interleaved"`` turns the neighbours (2g, 2g + 1): the paper, GPT-J, Meta's LLaMA code.
``"half"`` turns (g, g + rotary_dim/2): GPT-NeoX and most Hugging Face models.
"""

from typing import Literal

import numpy as np
from array_api_compat import array_namespace, device

from posenc_ref.checks import Array, check_choice, check_size, dtype_name

Layout = Literal["interleaved", "half"]
LAYOUTS: tuple[str, ...] = ("interleaved", "half")


def permutation(rotary_dim: int, *, source: Layout, target: Layout) -> Array:
    """Channel order ``perm`` with ``rotate_target(x[perm]) == rotate_source(x)[perm]``, int64 ``(rotary_dim,)``.

    >>> permutation(8, source="interleaved", target="half")
    array([0, 2, 4, 6, 1, 3, 5, 7])
    """
    rotary_dim = check_size("rotary_dim", rotary_dim, even=True)
    check_choice("source", source, LAYOUTS)
    check_choice("target", target, LAYOUTS)
    order = np.arange(rotary_dim)
    if source == target:
        return order
    to_half = order.reshape(-1, 2).T.ravel()
    return to_half if target == "half" else np.argsort(to_half)


def convert_projection(
    weight: Array, *, head_dim: int, source: Layout, target: Layout, rotary_dim: int | None = None
) -> Array:
    """Reorder the output rows of a query or key projection, so that the model works in the other layout.

    ``weight`` is ``(num_heads · head_dim, …)``, as ``torch.nn.Linear`` keeps it, or a bias of that length. Call
    it for queries and for keys, never for values: logits are then unchanged. Only the first ``rotary_dim`` rows
    of each head move (all by default). The number of heads follows from the shape, so it is right for
    grouped-query attention too.

    >>> convert_projection(np.arange(8), head_dim=4, source="interleaved", target="half")
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    dtype_name("weight", weight)  # raises if it is no array
    xp = array_namespace(weight)
    head_dim = check_size("head_dim", head_dim)
    if len(weight.shape) == 0:
        raise ValueError(f"weight must have at least one axis, got {weight}")
    rotary_dim = head_dim if rotary_dim is None else check_rotary_dim(rotary_dim, head_dim)
    if weight.shape[0] % head_dim:
        raise ValueError(f"weight must have a multiple of head_dim = {head_dim} rows, got {weight.shape[0]}")
    perm = permutation(rotary_dim, source=source, target=target)
    perm = np.concatenate([perm, np.arange(rotary_dim, head_dim)])
    rows = (np.arange(0, weight.shape[0], head_dim)[:, None] + perm).ravel()
    return xp.take(weight, xp.asarray(rows, device=device(weight)), axis=0)


def check_rotary_dim(rotary_dim: int, head_dim: int) -> int:
    """Return ``rotary_dim`` if it is even and at most ``head_dim``; raise otherwise.

    >>> check_rotary_dim(6, 4)
    Traceback (most recent call last):
    ValueError: rotary_dim must be at most head_dim = 4, got 6
    """
    rotary_dim = check_size("rotary_dim", rotary_dim, even=True)
    if rotary_dim > head_dim:
        raise ValueError(f"rotary_dim must be at most head_dim = {head_dim}, got {rotary_dim}")
    return rotary_dim
