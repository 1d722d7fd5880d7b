"""Context extension: RoPE's frequencies for texts longer than those a model was trained on.

Each function returns ``(inv_freq, attention_factor)``: angular frequencies in radians a token, NumPy float64
``(rotary_dim/2,)``, for :func:`~posenc_ref.rotary.rope.cos_sin`, and a number that multiplies cos and sin, hence
by its square the logits of the channels that turn. Common to all, with θ_g = base^(−2g/d) and d = rotary_dim:

- ``factor``: s = L'/L0 ≥ 1, the new context over the old one;
- ``original_max_position``: L0, the context in tokens that the model was trained on;
- ``length``: L, tokens of the text at hand (its last position + 1), where the frequencies depend on it.

Bad values raise ValueError, things that are no numbers TypeError. Equations of YaRN (Peng et al., arXiv:2309.00071)
are numbered as in its ICLR 2024 version.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from posenc_ref.checks import Array, check_base, check_choice, check_flag, check_number, check_size
from posenc_ref.rotary.layouts import check_rotary_dim
from posenc_ref.rotary.rope import inv_freq

Frequencies = tuple[Array, float]
Ramp = Literal["dim", "rotations"]


def position_interpolation(rotary_dim: int, *, factor: float, base: float = 10000.0) -> Frequencies:
    """Position interpolation (PI): θ_g / s, the same as dividing every position by s.

    Source: Chen et al. 2023, equation 4, arXiv:2306.15595.

    >>> position_interpolation(4, factor=4)[0] * 6
    array([1.5  , 0.015])
    """
    return inv_freq(rotary_dim, base=base) / check_number("factor", factor, 1), 1.0


def ntk_base(rotary_dim: int, *, factor: float, base: float = 10000.0) -> float:
    """Base of the NTK-aware method: base · s^(d/(d − 2)), for rotary_dim of at least 4. YaRN, equation 19.

    >>> round(ntk_base(128, factor=2), 4)
    20221.2617
    """
    base, factor = check_base(base), check_number("factor", factor, 1)
    rotary_dim = check_size("rotary_dim", rotary_dim, even=True)
    if rotary_dim < 4:
        raise ValueError(f"rotary_dim must be at least 4 for the NTK-aware base, got {rotary_dim}")
    exponent = rotary_dim / (rotary_dim - 2)
    if math.log(base) + exponent * math.log(factor) > 700:
        raise ValueError(f"factor is too large for base {base}: the new base is not finite, got {factor}")
    return float(base * factor**exponent)


def ntk_aware(rotary_dim: int, *, factor: float, base: float = 10000.0) -> Frequencies:
    """NTK-aware: RoPE with :func:`ntk_base`. Divides θ_g by s^(2g/(d − 2)): the first by 1, the last by s.

    Source: YaRN, appendix A.2, equations 17–22.

    >>> ntk_aware(8, factor=8)[0]
    array([1.00e+00, 5.00e-02, 2.50e-03, 1.25e-04])
    """
    return inv_freq(rotary_dim, base=ntk_base(rotary_dim, factor=factor, base=base)), 1.0


def dynamic_ntk(
    rotary_dim: int, *, factor: float, original_max_position: int, length: int, base: float = 10000.0
) -> Frequencies:
    """Dynamic NTK: :func:`ntk_aware` by s·L/L0 − (s − 1) once L > L0; plain RoPE up to L0.

    ``factor=1`` gives the paper's L/L0; the form with s is transformers' "dynamic". Angles change with L at every
    position, so keys must be cached before they are turned. Source: YaRN, section 3.4.

    >>> dynamic_ntk(128, factor=2, original_max_position=2048, length=2048)[0][-1] == inv_freq(128)[-1]
    np.True_
    """
    factor, original = check_number("factor", factor, 1), _tokens("original_max_position", original_max_position)
    beyond = max(0.0, _tokens("length", length) / original - 1)
    scale = 1 + factor * beyond  # 1 + s(L/L0 − 1), exact at L0
    if scale > 1e100:
        raise ValueError(f"factor is too large for this length: it stretches by {scale}, got {factor}")
    return ntk_aware(rotary_dim, factor=scale, base=base)


def by_parts(
    rotary_dim: int,
    *,
    factor: float,
    original_max_position: int,
    base: float = 10000.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    ramp: Ramp = "dim",
    truncate: bool = True,
) -> Frequencies:
    """NTK-by-parts: θ_g·γ_g + (θ_g/s)·(1 − γ_g). Fast pairs stay (γ = 1), slow ones are interpolated (γ = 0).

    A pair turns r_g = L0·θ_g/2π times within the original context. Between ``beta_slow`` and ``beta_fast`` turns,
    there are two ramps, and they are not the same method:

    - ``ramp="rotations"``, the paper's text: γ linear in r_g;
    - ``ramp="dim"``, the authors' code and all released models: γ linear in the pair's number g, from the g where
      r = beta_fast to that where r = beta_slow. ``truncate`` rounds these outwards, to whole numbers.

    Source: YaRN, section 3.2, equations 10–13; ``"dim"`` from its published code.

    >>> by_parts(16, factor=4, original_max_position=2048)[0].round(6)
    array([1.00000e+00, 3.16228e-01, 1.00000e-01, 2.56940e-02, 6.25000e-03,
           1.38300e-03, 2.50000e-04, 7.90000e-05])
    """
    theta, factor = inv_freq(rotary_dim, base=base), check_number("factor", factor, 1)
    original = _tokens("original_max_position", original_max_position)
    slow = check_number("beta_slow", beta_slow, 0, above=True)
    fast = check_number("beta_fast", beta_fast, 0, above=True)
    if slow > fast:
        raise ValueError(f"beta_fast must be at least beta_slow = {beta_slow}, got {beta_fast}")
    check_flag("truncate", truncate)
    if check_choice("ramp", ramp, ("dim", "rotations")) == "rotations":
        turns = original * theta / (2 * math.pi)
        stay = np.clip((turns - slow) / (fast - slow), 0, 1) if slow < fast else np.where(turns < slow, 0.0, 1.0)
    else:
        low, high = (_pair_of_turns(turns, rotary_dim, original, base) for turns in (fast, slow))
        if truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)  # as published, though pairs end at rotary_dim/2 − 1
        stay = 1 - np.clip((np.arange(rotary_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return theta * stay + theta / factor * (1 - stay), 1.0


def yarn(
    rotary_dim: int,
    *,
    factor: float,
    original_max_position: int,
    base: float = 10000.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    ramp: Ramp = "dim",
    truncate: bool = True,
    mscale: float = 1.0,
    mscale_all_dim: float = 0.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """YaRN: :func:`by_parts`, with cos and sin multiplied by √(1/t) = 0.1 ln s + 1, so the logits by 1/t.

    DeepSeek's models split that number: cos and sin get m(mscale)/m(mscale_all_dim), where m is
    :func:`yarn_mscale`, and the softmax scale gets m(mscale_all_dim)², which reaches the channels that do not turn
    as well; see :attr:`YaRN.logit_factor`. ``attention_factor`` replaces what cos and sin get, and nothing else.

    Source: YaRN, section 3.3, equations 14 and 15; the split from DeepSeek-V2's published code.

    >>> round(yarn(16, factor=4, original_max_position=2048)[1], 8)
    1.13862944
    """
    theta, _ = by_parts(
        rotary_dim, factor=factor, original_max_position=original_max_position, base=base,
        beta_fast=beta_fast, beta_slow=beta_slow, ramp=ramp, truncate=truncate,
    )  # fmt: skip
    if attention_factor is not None:
        return theta, check_number("attention_factor", attention_factor, 0, above=True)
    return theta, yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Return m(mscale) = 0.1 · mscale · ln s + 1. YaRN, equation 15, has mscale = 1.

    >>> round(yarn_mscale(40), 8)
    1.36888795
    """
    return 0.1 * check_number("mscale", mscale, 0) * math.log(check_number("factor", factor, 1)) + 1.0


def llama3(
    rotary_dim: int,
    *,
    factor: float,
    original_max_position: int,
    base: float,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Frequencies:
    """Llama 3.1: :func:`by_parts` with the ramp in rotations, from low_freq_factor to high_freq_factor turns.

    Equal factors, as in files of Llama 4, make a step.

    Source: Meta's published code for Llama 3.1 (``apply_scaling``), with factor 8 and L0 = 8192. The paper
    (arXiv:2407.21783) gives the base, 500,000, and not this.

    >>> scaled, _ = llama3(128, factor=8, original_max_position=8192, base=500000.0)
    >>> (inv_freq(128, base=500000.0) / scaled)[[0, 28, 32, 36, 63]].round(3)
    array([1.   , 1.   , 2.695, 8.   , 8.   ])
    """
    low = check_number("low_freq_factor", low_freq_factor, 0, above=True)
    high = check_number("high_freq_factor", high_freq_factor, 0, above=True)
    if low > high:
        raise ValueError(
            f"high_freq_factor must be at least low_freq_factor = {low_freq_factor}, got {high_freq_factor}"
        )
    return by_parts(
        rotary_dim, factor=factor, original_max_position=original_max_position, base=base,
        beta_fast=high, beta_slow=low, ramp="rotations",
    )  # fmt: skip


def longrope(
    rotary_dim: int,
    *,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    factor: float,
    original_max_position: int,
    length: int,
    base: float = 10000.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """LongRoPE: θ_g / λ_g with one searched factor λ_g a pair, from ``long_factor`` if L > L0, else ``short_factor``.

    The attention factor is √(1 + ln s / ln L0) unless given. Cached keys: as for :func:`dynamic_ntk`. The paper's
    n̂ first tokens, which keep their angles, are left out, as in released models.

    Source: Ding et al. 2024, equation 3, arXiv:2402.13753; the attention factor from its published code.

    >>> f, a = longrope(4, short_factor=[1, 1], long_factor=[2, 8], factor=8, original_max_position=4096, length=4097)
    >>> f, round(a, 6)
    (array([0.5    , 0.00125]), 1.118034)
    """
    theta, factor = inv_freq(rotary_dim, base=base), check_number("factor", factor, 1)
    original = _tokens("original_max_position", original_max_position)
    divisors = [_factors(n, f, rotary_dim) for n, f in (("short_factor", short_factor), ("long_factor", long_factor))]
    theta = theta / divisors[_tokens("length", length) > original]
    if attention_factor is not None:
        return theta, check_number("attention_factor", attention_factor, 0, above=True)
    if original < 2:
        raise ValueError(f"original_max_position must be at least 2, got {original_max_position}")
    return theta, math.sqrt(1 + math.log(factor) / math.log(original))


def proportional(rotary_dim: int, *, rotated: int, factor: float = 1.0, base: float = 10000.0) -> Frequencies:
    """Proportional RoPE: the first rotated/2 frequencies θ_g / s, and zeros: those pairs do not turn.

    ``rotary_dim`` is the whole head here: it stays in the exponent and in the pairing, unlike partial rotary, where
    the exponent and the pairs are those of the part that turns. Source: p-RoPE of Barbero et al. 2024,
    arXiv:2410.06205; Gemma 4 (transformers' "proportional").

    >>> proportional(8, rotated=4)[0]
    array([1. , 0.1, 0. , 0. ])
    """
    theta, _ = position_interpolation(rotary_dim, factor=factor, base=base)
    return np.where(np.arange(rotary_dim // 2) < check_rotary_dim(rotated, rotary_dim) // 2, theta, 0.0), 1.0


def _pair_of_turns(turns: float, rotary_dim: int, length: float, base: float) -> float:
    """Number g, not whole, of the pair that turns that many times in ``length`` tokens: length·θ_g = 2π·turns."""
    return rotary_dim * (math.log(length) - math.log(2 * math.pi) - math.log(turns)) / (2 * math.log(base))


def _factors(name: str, factors: Sequence[float], rotary_dim: int) -> Array:
    try:
        array = np.asarray(factors, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be numbers, got {factors!r}") from None
    if array.shape != (rotary_dim // 2,):
        raise ValueError(f"{name} must have one entry for each of {rotary_dim // 2} pairs, got shape {array.shape}")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name} must be finite and above 0, got {array}")
    return array


def _tokens(name: str, value: int) -> float:
    return check_number(name, check_size(name, value), 1)
