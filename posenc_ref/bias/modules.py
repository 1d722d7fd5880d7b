"""The learned biases as PyTorch modules, thin over the functions beside them. Importing this module needs torch."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc_ref.attention import Spec
from posenc_ref.bias.fire import mlp, normalized_distance
from posenc_ref.bias.kerple import VARIANTS, Variant, kernel
from posenc_ref.bias.offsets import LogitBias, ToeplitzBias, bias_dtype, offsets
from posenc_ref.bias.t5 import bucket_starts, check_buckets, look_up
from posenc_ref.checks import check_choice, check_number, check_size


class T5Bias(torch.nn.Module, ToeplitzBias):
    """Adds :func:`posenc_ref.bias.t5_bias` with a learned table to logits that are *not* scaled by 1/√head_dim.

    T5 has one table for all layers: make one module and give it to every layer. The table starts normal with
    ``init_std``; T5 takes d_model^(−1/2).

    >>> t5 = T5Bias(8, bidirectional=True)
    >>> t5(torch.arange(4), torch.arange(4)).shape, t5.logit_scale(64)
    (torch.Size([1, 8, 4, 4]), 1.0)
    """

    spec: ClassVar[Spec] = Spec(
        "t5", "logits", shift_invariant=True, any_length=True, learned=True,
        source="Raffel et al. 2020, section 2.1, arXiv:1910.10683",
        parameters="num_buckets · num_heads", cost="S²·H, or S·H as a vector",
    )  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        *,
        bidirectional: bool,
        num_buckets: int = 32,
        max_distance: int = 128,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.starts = bucket_starts(check_buckets(num_buckets, bidirectional), max_distance)
        self.bidirectional, self.init_std = bidirectional, check_number("init_std", init_std, 0)
        self.table = torch.nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        torch.nn.init.normal_(self.table, std=self.init_std)

    def forward(self, q_positions: Tensor, k_positions: Tensor, *, dtype: Any = None) -> Tensor:
        """Return the bias, ``(batch | 1, num_heads, q_len, k_len)``."""
        offset = offsets(q_positions, k_positions)
        bias: Tensor = look_up(offset, self.table, self.starts, bidirectional=self.bidirectional, dtype=dtype)
        return bias

    def logit_scale(self, head_dim: int) -> float:
        """Return 1: T5 puts the scale into the initialisation of its projections."""
        return 1.0


class KerpleBias(torch.nn.Module, ToeplitzBias):
    """Adds :func:`posenc_ref.bias.kerple_bias` with r₁ and r₂ learned for each head.

    They stay in range by construction, r₁ = exp(raw), r₂ = exp(raw) or, for ``"power"``, 2·sigmoid(raw), where the
    authors' code clamps them in place. Both start uniform in (0, 1] or (0, 2], as there: never at 0, where the
    bias would be nothing and r₂ would get no gradient.

    >>> kerple = KerpleBias(8, variant="log")
    >>> bool((kerple.bias_vector(1, 9, like=kerple.raw_r1)[:, 0] < 0).all())
    True
    """

    spec: ClassVar[Spec] = Spec(
        "kerple", "logits", shift_invariant=True, any_length=True, learned=True,
        source="Chi et al. 2022, section 4, arXiv:2205.09921",
        parameters="2 · num_heads", cost="S²·H, or S·H as a vector",
    )  # fmt: skip

    def __init__(self, num_heads: int, *, variant: Variant) -> None:
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.variant = variant
        check_choice("variant", variant, VARIANTS)
        self.raw_r1 = torch.nn.Parameter(torch.empty(num_heads))
        self.raw_r2 = torch.nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw r₁ and r₂ anew, uniform as the authors do, at least 0.01."""
        unit = [torch.rand_like(raw).clamp(0.01, 0.99) for raw in (self.raw_r1, self.raw_r2)]
        with torch.no_grad():
            self.raw_r1.copy_((unit[0] * (2 if self.variant == "log" else 1)).log())
            self.raw_r2.copy_(unit[1].log() if self.variant == "log" else unit[1].logit())

    @property
    def r1(self) -> Tensor:
        """Weights of the heads, ``(num_heads,)``."""
        return self.raw_r1.exp()

    @property
    def r2(self) -> Tensor:
        """Rates (``"log"``) or exponents (``"power"``) of the heads, ``(num_heads,)``."""
        return self.raw_r2.exp() if self.variant == "log" else 2 * self.raw_r2.sigmoid()

    def forward(self, q_positions: Tensor, k_positions: Tensor, *, dtype: Any = None) -> Tensor:
        """Return the bias, ``(1 or batch, num_heads, q_len, k_len)``."""
        offset = offsets(q_positions, k_positions)
        bias: Tensor = kernel(offset, self.r1, self.r2, variant=self.variant, dtype=dtype)
        return bias


class FireBias(torch.nn.Module, LogitBias):
    """Adds :func:`posenc_ref.bias.fire_bias` with c, the threshold and the network learned.

    c and the threshold (tokens) are learned as their logarithms, which keeps them positive; ``c``, ``threshold``
    and ``width`` default to the values of the paper. Not shift-invariant beyond the threshold.

    >>> fire = FireBias(8)
    >>> fire(torch.arange(4), torch.arange(4)).shape
    torch.Size([1, 8, 4, 4])
    """

    spec: ClassVar[Spec] = Spec(
        "fire", "logits", shift_invariant=False, any_length=True, learned=True,
        source="Li et al. 2024, section 3, arXiv:2310.04418",
        parameters="width · (num_heads + 2) + num_heads + 2", cost="S²·H·width",
    )  # fmt: skip

    def __init__(self, num_heads: int, *, width: int = 32, c: float = 0.1, threshold: float = 512.0) -> None:
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.initial = (check_number("c", c, 0, above=True), check_number("threshold", threshold, 0, above=True))
        self.hidden = torch.nn.Linear(1, check_size("width", width))
        self.out = torch.nn.Linear(width, num_heads)
        self.log_c = torch.nn.Parameter(torch.empty(()))
        self.log_threshold = torch.nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set c and the threshold to where they began, and draw the network anew."""
        torch.nn.init.constant_(self.log_c, math.log(self.initial[0]))
        torch.nn.init.constant_(self.log_threshold, math.log(self.initial[1]))
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def forward(self, q_positions: Tensor, k_positions: Tensor, *, dtype: Any = None) -> Tensor:
        """Return the bias, ``(batch | 1, num_heads, q_len, k_len)``."""
        weights = (self.hidden.weight, self.hidden.bias, self.out.weight, self.out.bias)
        dtype = bias_dtype(torch, dtype, *weights)
        c, threshold = self.log_c.to(dtype).exp(), self.log_threshold.to(dtype).exp()
        bias: Tensor = mlp(normalized_distance(q_positions, k_positions, c, threshold, dtype=dtype), *weights)
        return bias
