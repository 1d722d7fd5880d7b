"""Every encoding by name, with its properties, for chapters, lab and tables alike."""

from collections.abc import Callable
from typing import Any

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import check_choice
from posenc_ref.embedding.sinusoidal import Sinusoidal
from posenc_ref.rotary.rope import RoPE

_ENCODINGS: dict[str, type[Encoding]] = {e.spec.name: e for e in (Encoding, Sinusoidal, RoPE)}


def names() -> tuple[str, ...]:
    """Names of all encodings.

    >>> names()
    ('nope', 'sinusoidal', 'rope')
    """
    return tuple(_ENCODINGS)


def spec(name: str) -> Spec:
    """Properties of an encoding.

    >>> spec("rope").shift_invariant
    True
    """
    return _ENCODINGS[check_choice("name", name, names())].spec


def create(name: str, **arguments: Any) -> Encoding:
    """Make an encoding by name; the arguments are those of its class.

    >>> create("rope", head_dim=8, layout="half").rotary_dim is None
    True
    """
    make: Callable[..., Encoding] = _ENCODINGS[check_choice("name", name, names())]
    return make(**arguments)
