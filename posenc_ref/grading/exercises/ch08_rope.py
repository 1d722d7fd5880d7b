"""Exercises of chapter 08: rotary position embedding."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes
from posenc_ref.rotary import rope

BASE = 10000.0

# --- 8.1 rotate queries or keys, interleaved


def _rotate(x: Any, positions: Any) -> Any:
    cos, sin = rope.cos_sin(positions, rope.inv_freq(x.shape[-1]))
    return rope.rotate(x, cos, sin, layout="interleaved")


def _angles(x: Any, positions: Any) -> Any:
    theta = BASE ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    return positions[:, None] * theta  # (seq, pairs)


def _interleaved(x: Any, angles: Any) -> Any:
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    y[..., 1::2] = x[..., 1::2] * np.cos(angles) + x[..., 0::2] * np.sin(angles)
    return y


def _clockwise(x: Any, positions: Any) -> Any:
    return _interleaved(x, -_angles(x, positions))


def _half_split(x: Any, positions: Any) -> Any:
    a, half = _angles(x, positions), x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return np.concatenate([x1 * np.cos(a) - x2 * np.sin(a), x2 * np.cos(a) + x1 * np.sin(a)], axis=-1)


def _halves_put_together(x: Any, positions: Any) -> Any:
    a = _angles(x, positions)
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return np.concatenate([x1 * np.cos(a) - x2 * np.sin(a), x2 * np.cos(a) + x1 * np.sin(a)], axis=-1)


def _exponent_not_doubled(x: Any, positions: Any) -> Any:
    theta = BASE ** (-np.arange(x.shape[-1] // 2) / x.shape[-1])
    return _interleaved(x, positions[:, None] * theta)


def _counted_positions(x: Any, positions: Any) -> Any:
    return _rotate(x, np.arange(len(positions)))


def _overwritten(x: Any, positions: Any) -> Any:
    a, y = _angles(x, positions), x.copy()
    y[..., 0::2] = y[..., 0::2] * np.cos(a) - y[..., 1::2] * np.sin(a)
    y[..., 1::2] = y[..., 1::2] * np.cos(a) + y[..., 0::2] * np.sin(a)
    return y


def _one_frequency(x: Any, positions: Any) -> Any:
    return _interleaved(x, np.broadcast_to(positions[:, None], (len(positions), x.shape[-1] // 2)))


def _same_sign(x: Any, positions: Any) -> Any:
    a, y = _angles(x, positions), np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * np.cos(a) + x[..., 1::2] * np.sin(a)
    y[..., 1::2] = x[..., 1::2] * np.cos(a) + x[..., 0::2] * np.sin(a)
    return y


def _float32_angles(x: Any, positions: Any) -> Any:
    return _interleaved(x, _angles(x, positions).astype(np.float32).astype(np.float64))


def _loops(x: Any, positions: Any) -> Any:
    y = np.zeros(x.shape)
    for t, p in enumerate(positions):
        for g in range(x.shape[-1] // 2):
            angle = p * BASE ** (-2 * g / x.shape[-1])
            a, b = x[:, t, 2 * g], x[:, t, 2 * g + 1]
            y[:, t, 2 * g] = a * np.cos(angle) - b * np.sin(angle)
            y[:, t, 2 * g + 1] = b * np.cos(angle) + a * np.sin(angle)
    return y


def _complex(x: Any, positions: Any) -> Any:
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * _angles(x, positions))
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def _blocks(x: Any, positions: Any) -> Any:
    c, s = np.cos(_angles(x, positions)), np.sin(_angles(x, positions))
    blocks = np.array([[c, -s], [s, c]])  # (2, 2, seq, pairs)
    return np.einsum("ijtg,htgj->htgi", blocks, x.reshape(*x.shape[:-1], -1, 2)).reshape(x.shape)


@st.composite
def _heads_and_positions(draw: Any) -> Any:
    heads, seq, pairs = draw(sizes(1, 3)), draw(sizes(1, 2, 4)), draw(sizes(1, 2, 3))
    return draw(quarters(heads, seq, 2 * pairs)), draw(integers(seq))


def _shifted(rotate: Any, x: Any, positions: Any) -> Any:
    def logits(shift: int) -> Any:
        return rotate(x, positions + shift) @ rotate(np.flip(x, -1), positions + shift).swapaxes(-1, -2)

    return logits(0), logits(5)


_ROTATE = Exercise(
    id="rope.rotate",
    number="8.1",
    chapter="08_rope",
    title="Rotate queries by their positions",
    minutes=10,
    difficulty=2,
    function="rotate",
    reference=_rotate,
    inputs=_heads_and_positions(),
    edges={
        "a far position (131,071)": (np.array([[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]]), np.array([131_071])),
        "a wide head (64 channels)": (np.arange(3 * 2 * 64.0).reshape(3, 2, 64) % 7 - 3, np.array([9, 4])),
    },
    properties=(
        Property(
            "each pair keeps its length",
            lambda rotate, x, p: (
                np.linalg.norm(rotate(x, p).reshape(*x.shape[:-1], -1, 2), axis=-1),
                np.linalg.norm(x.reshape(*x.shape[:-1], -1, 2), axis=-1),
            ),
        ),
        Property("logits stay the same when all positions grow by 5", _shifted),
        Property("position 0 changes nothing", lambda rotate, x, p: (rotate(x, 0 * p), x)),
    ),
    mistakes=(
        Mistake(
            _clockwise,
            "This turns clockwise: the sign of the sine terms is flipped.",
            "where should the pair (1, 0) go for a small positive angle?",
        ),
        Mistake(
            _half_split,
            "These are the right numbers in the half-split layout, pairs (g, g + d/2). "
            "This exercise asks for interleaved pairs, (2g, 2g + 1).",
            "which channel is the partner of channel 0?",
        ),
        Mistake(
            _halves_put_together,
            "The pairs are turned rightly, but put back as two halves: all first components, then all second ones.",
            "y[..., 0::2] = … and y[..., 1::2] = … put each component where it came from.",
        ),
        Mistake(
            _exponent_not_doubled,
            "The exponent is −g/d where −2g/d is asked for, so that all pairs but the first turn too fast.",
            "the last of d/2 pairs should have a frequency near 1/10000. What is yours?",
        ),
        Mistake(
            _counted_positions,
            "This counts positions 0, 1, 2, … and leaves the argument positions unused.",
            "think of one new query behind a cache of 100 keys. Which position has it?",
        ),
        Mistake(
            _overwritten,
            "The second component is computed from the first one after that was overwritten.",
            "keep x[..., 0::2] in a variable before you write to it.",
        ),
        Mistake(
            _one_frequency,
            "All pairs turn at the speed of the first. Pair g turns by position · θ_g.",
            "print θ_g for d = 6: three numbers are needed.",
        ),
        Mistake(
            _same_sign,
            "Both sine terms have a plus sign. That is no rotation: lengths change.",
            "multiply out [[cos, −sin], [sin, cos]] by (x₁, x₂).",
        ),
        Mistake(
            _float32_angles,
            "The angles went through float32, which is not enough at far positions.",
            "compute position · θ_g in float64, and cast the result if you must.",
        ),
    ),
    alternatives=(_loops, _complex, _blocks),
)

EXERCISES = (_ROTATE,)
