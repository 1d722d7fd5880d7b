"""Turning queries and keys where they lie: the fast form of :func:`posenc_ref.rotary.rotate`, for inference."""

from typing import Any

from array_api_compat import array_namespace, device, is_torch_array

from posenc_ref.checks import Array, check_broadcast, check_choice, check_floating
from posenc_ref.rotary.layouts import LAYOUTS, Layout, check_rotary_dim


def rotate_(x: Array, cos: Array, sin: Array, *, layout: Layout) -> Array:
    """:func:`posenc_ref.rotary.rotate` in place: ``x`` itself is turned, and returned.

    Turning is so little work that the memory decides: the plain form reads and writes arrays of the size of ``x``
    several times, and most of its time goes into fetching new ones from the system. This one needs half of ``x``
    beside it in PyTorch, where many small steps would wait for each other, and one head in NumPy.

    Parameters
    ----------
    x : ``(batch, heads, seq, head_dim)``, NumPy, or PyTorch without gradient. Half precision is turned in the dtype of
        the tables, one head at a time, and rounded once.
    cos, sin : float32 or float64, ``(…, rotary_dim/2)``, broadcastable against one head.
    layout : ``"interleaved"`` or ``"half"``, as there.

    >>> import numpy as np
    >>> x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    >>> rotate_(x, np.zeros(2), np.ones(2), layout="half") is x, x.tolist()        # a quarter turn
    (True, [[[[-3.0, -4.0, 1.0, 2.0]]]])
    """
    check_choice("layout", layout, LAYOUTS)
    xp = array_namespace(check_floating("x", x), check_floating("cos", cos), check_floating("sin", sin))
    if len(x.shape) != 4:
        raise ValueError(f"x must be (batch, heads, seq, head_dim), got shape {tuple(x.shape)}")
    if getattr(x, "requires_grad", False):
        raise ValueError("x must not require gradients to be turned in place, got requires_grad=True: use rotate")
    if cos.dtype not in (xp.float32, xp.float64) or cos.dtype != sin.dtype:
        raise TypeError(f"cos and sin must share float32 or float64, got {cos.dtype} and {sin.dtype}")
    pairs = cos.shape[-1] if cos.shape else 0
    check_rotary_dim(2 * pairs, x.shape[-1])
    if cos.shape != sin.shape:
        raise ValueError(f"sin must have the shape of cos, {tuple(cos.shape)}, got {tuple(sin.shape)}")
    check_broadcast("cos", cos, (x.shape[0], 1, x.shape[2], pairs))
    turned = x[..., : 2 * pairs]
    direct = x.dtype == cos.dtype and (layout == "half" or _views_as_complex(x))
    if direct and is_torch_array(x):
        _turn(xp, turned, cos, sin, layout)
        return x
    spare = xp.empty((x.shape[0], 1, x.shape[2], 2 * pairs), dtype=cos.dtype, device=device(x))
    for h in range(x.shape[1]):  # one after the other, so that what is written is still in the cache when it is read
        head = turned[:, h : h + 1]
        if direct:
            _turn(xp, head, cos, sin, layout)
        else:
            spare[...] = head
            _turn(xp, spare, cos, sin, layout)
            head[...] = spare
    return x


def _turn(xp: Any, x: Array, cos: Array, sin: Array, layout: Layout) -> None:
    """Turn all channels of ``x``, which has the dtype of the tables."""
    if layout == "half":
        x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        old = x1 * sin
        x1 *= cos
        if is_torch_array(x):
            x1.addcmul_(x2, sin, value=-1)
        else:
            x1 -= x2 * sin
        x2 *= cos
        x2 += old
    elif is_torch_array(x):
        z = xp.view_as_complex(x.unflatten(-1, (-1, 2)))
        z *= xp.complex(cos, sin)
    else:
        z = x.view(xp.complex64 if x.dtype == xp.float32 else xp.complex128)
        z *= cos + xp.asarray(1j, dtype=z.dtype) * sin


def _views_as_complex(x: Array) -> bool:
    """Can neighbouring channels be read as one complex number where they are?"""
    if is_torch_array(x):
        return x.stride(-1) == 1 and all(n % 2 == 0 for n in (*x.stride()[:-1], x.storage_offset()))
    return bool(x.strides[-1] == x.itemsize)
