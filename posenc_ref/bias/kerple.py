"""KERPLE, kernelized relative position biases (Chi et al. 2022, arXiv:2205.09921)."""

import math
from typing import Any, Literal

from array_api_compat import array_namespace

from posenc_ref.bias.offsets import bias_dtype, check_positive, offsets
from posenc_ref.checks import Array, check_choice, check_floating

Variant = Literal["log", "power"]
VARIANTS: tuple[str, ...] = ("log", "power")


def kerple_bias(
    q_positions: Array, k_positions: Array, *, r1: Array, r2: Array, variant: Variant, dtype: Any = None
) -> Array:
    """Bias that falls with the distance: ``−r₁·log(1 + r₂·|key − query|)`` or ``−r₁·|key − query|^r₂``.

    Parameters
    ----------
    q_positions, k_positions : ``(len,)`` or ``(batch, len)``, tokens.
    r1, r2 : ``(num_heads,)``, positive; r₂ ≤ 2 in the power variant, beyond which the kernel is no longer
        conditionally positive definite (ValueError).
    variant : ``"log"`` or ``"power"``. ALiBi's symmetric form is the power variant with r₂ = 1.
    dtype : float32 or float64; default that of the parameters, at least float32.

    Returns
    -------
    ``(batch | 1, num_heads, q_len, k_len)``, to be added after the logit scale, as the authors' code does. Their
    equation 1 divides the kernel by √head_dim as well: its r₁ is √head_dim times the one here.

    Source: Chi et al. 2022, section 4, "Practical Choice", with equations 1 to 4.

    >>> import numpy as np
    >>> r1, r2 = np.array([2.0]), np.array([1.0])
    >>> kerple_bias(np.array([3]), np.arange(4), r1=r1, r2=r2, variant="log")[0, 0].round(4)
    array([[-2.7726, -2.1972, -1.3863, -0.    ]])
    """
    offset = offsets(q_positions, k_positions)
    check_choice("variant", variant, VARIANTS)
    check_positive("r1", check_floating("r1", r1))
    check_positive("r2", check_floating("r2", r2), most=2.0 if variant == "power" else math.inf)
    if len(r1.shape) != 1 or r1.shape != r2.shape:
        raise ValueError(f"r1 and r2 must both be (num_heads,), got shapes {tuple(r1.shape)} and {tuple(r2.shape)}")
    return kernel(offset, r1, r2, variant=variant, dtype=dtype)


def kernel(offset: Array, r1: Array, r2: Array, *, variant: Variant, dtype: Any = None) -> Array:
    """The formula of :func:`kerple_bias` for offsets ``(batch | 1, 1, q_len, k_len)``, values unchecked.

    For compiled code, which cannot look at values: ``KerpleBias`` keeps its parameters in range by construction.
    """
    xp = array_namespace(offset, r1, r2)
    dtype = bias_dtype(xp, dtype, r1, r2)
    distance = xp.astype(xp.abs(offset), dtype)
    r1, r2 = xp.astype(r1, dtype)[:, None, None], xp.astype(r2, dtype)[:, None, None]
    return -r1 * (xp.log1p(r2 * distance) if variant == "log" else distance**r2)
