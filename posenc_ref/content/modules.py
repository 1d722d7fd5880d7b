"""The encodings by offset and content as PyTorch modules over the functions beside them. Importing it needs torch."""

from typing import ClassVar

import torch
from torch import Tensor

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import check_base, check_choice, check_flag, check_number, check_size
from posenc_ref.content.cope import cope_bias
from posenc_ref.content.deberta import P2C_INDICES, P2CIndex, deberta_scale, disentangled, log_bucket_ends
from posenc_ref.content.shaw import shaw_bias, shaw_values
from posenc_ref.content.transformer_xl import transformer_xl_bias


class Shaw(torch.nn.Module, Encoding):
    """Relative vectors on keys and values, :func:`posenc_ref.content.shaw_bias` and ``shaw_values``.

    ``num_heads=None`` shares the vectors between the heads, as the paper does; a number gives each head its own.

    >>> shaw = Shaw(64, max_distance=16)
    >>> shaw.keys.shape
    torch.Size([33, 64])
    """

    spec: ClassVar[Spec] = Spec(
        "shaw", "logits and values", shift_invariant=True, any_length=True, learned=True,
        source="Shaw et al. 2018, section 3, arXiv:1803.02155",
        parameters="2 · num_heads · (2 · max_distance + 1) · head_dim", cost="S·H·d·rows + S²·H, twice",
    )  # fmt: skip

    def __init__(
        self, head_dim: int, *, max_distance: int, num_heads: int | None = None, init_std: float = 0.02
    ) -> None:
        super().__init__()
        rows = 2 * check_size("max_distance", max_distance, minimum=0) + 1
        heads = () if num_heads is None else (check_size("num_heads", num_heads),)
        self.keys, self.value_vectors = (_vectors(*heads, rows, check_size("head_dim", head_dim)) for _ in range(2))
        self.init_std = check_number("init_std", init_std, 0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        _draw(self, self.init_std)

    def bias(
        self, q: Tensor, k: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the key vectors."""
        bias: Tensor = shaw_bias(q, q_positions, k_positions, self.keys)
        return bias

    def values(self, weights: Tensor, v: Tensor, *, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return Σ_j α_ij (v_j + a^V_ij)."""
        relative: Tensor = shaw_values(weights, q_positions, k_positions, self.value_vectors)
        return weights @ v + relative


class TransformerXL(torch.nn.Module, Encoding):
    """Adds the three relative terms of :func:`posenc_ref.content.transformer_xl_bias`, with u, v and W_r learned.

    The authors' small models share u and v between the layers: give them one module's parameters.

    >>> xl = TransformerXL(8, 64)
    >>> xl.u.shape, xl.w_r.shape
    (torch.Size([8, 64]), torch.Size([8, 64, 512]))
    """

    spec: ClassVar[Spec] = Spec(
        "transformer_xl", "logits", shift_invariant=True, any_length=True, learned=True,
        source="Dai et al. 2019, section 3.3, arXiv:1901.02860",
        parameters="num_heads · head_dim · (d_model + 2)", cost="S²·H·d_model, or S²·H·d by the shift",
    )  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        d_model: int | None = None,
        base: float = 10000.0,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        shape = (check_size("num_heads", num_heads), check_size("head_dim", head_dim))
        d_model = num_heads * head_dim if d_model is None else d_model
        self.u, self.v = _vectors(*shape), _vectors(*shape)
        self.w_r = _vectors(*shape, check_size("d_model", d_model, even=True))
        self.base, self.init_std = check_base(base), check_number("init_std", init_std, 0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw u, v and W_r anew."""
        _draw(self, self.init_std)

    def bias(
        self, q: Tensor, k: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the terms b, c and d."""
        bias: Tensor = transformer_xl_bias(
            q, k, q_positions, k_positions, u=self.u, v=self.v, w_r=self.w_r, base=self.base
        )
        return bias


class DeBERTa(torch.nn.Module, Encoding):
    """Adds c2p and p2c of :func:`posenc_ref.content.deberta_bias`, with embeddings and both projections learned.

    The model shares the relative embeddings between its layers, which differ in their projections:
    ``layer.relative = first.relative``. With ``max_position`` (v2, v3) the span is the number of buckets.

    >>> v3 = DeBERTa(12, 64, span=256, p2c_index="released", max_position=512)
    >>> v3.relative.shape, round(1 / v3.logit_scale(64), 4)
    (torch.Size([512, 768]), 13.8564)
    """

    spec: ClassVar[Spec] = Spec(
        "deberta", "logits", shift_invariant=True, any_length=True, learned=True,
        source="He et al. 2021, section 3.1, arXiv:2006.03654",
        parameters="d_model · (2 · span + 2 · d_model + 1)", cost="S·H·d·rows + S²·H, twice",
    )  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        span: int,
        p2c_index: P2CIndex,
        max_position: int | None = None,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = check_size("num_heads", num_heads), check_size("head_dim", head_dim)
        check_choice("p2c_index", p2c_index, P2C_INDICES)
        self.p2c_index: P2CIndex = p2c_index
        self.ends = None if max_position is None else log_bucket_ends(span, max_position)
        d_model = num_heads * head_dim
        self.relative = _vectors(2 * check_size("span", span), d_model)
        self.key = torch.nn.Linear(d_model, d_model, bias=False)
        self.query = torch.nn.Linear(d_model, d_model)
        self.init_std = check_number("init_std", init_std, 0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings and projections anew; the bias of the query projection starts at 0."""
        _draw(self, self.init_std)
        torch.nn.init.zeros_(self.query.bias)

    def bias(
        self, q: Tensor, k: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return c2p + p2c, scaled."""
        keys, queries = (
            projection(self.relative).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
            for projection in (self.key, self.query)
        )
        bias: Tensor = disentangled(
            q, k, q_positions, k_positions, keys, queries, p2c_index=self.p2c_index, ends=self.ends
        )
        return bias

    def logit_scale(self, head_dim: int) -> float:
        """Return 1/√(3·head_dim)."""
        return deberta_scale(head_dim, terms=2)


class CoPE(torch.nn.Module, Encoding):
    """Adds :func:`posenc_ref.content.cope_bias` with a learned vector for each counted position.

    A key that the mask hides is not counted. The vectors start at 0, as the authors' do, unless ``init_std`` says
    otherwise.

    >>> CoPE(64, num_positions=32, scaled=True).table.shape
    torch.Size([32, 64])
    """

    spec: ClassVar[Spec] = Spec(
        "cope", "logits", shift_invariant=True, any_length=True, learned=True,
        source="Golovneva et al. 2024, section 4, arXiv:2405.18719",
        parameters="num_positions · head_dim", cost="S²·H·d",
    )  # fmt: skip

    def __init__(
        self, head_dim: int, *, num_positions: int, scaled: bool, num_heads: int | None = None, init_std: float = 0.0
    ) -> None:
        super().__init__()
        heads = () if num_heads is None else (check_size("num_heads", num_heads),)
        self.table = _vectors(*heads, check_size("num_positions", num_positions), check_size("head_dim", head_dim))
        self.scaled, self.init_std = check_flag("scaled", scaled), check_number("init_std", init_std, 0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew."""
        _draw(self, self.init_std)

    def bias(
        self, q: Tensor, k: Tensor, *, q_positions: Tensor, k_positions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the counted positions."""
        bias: Tensor = cope_bias(q, k, q_positions, k_positions, self.table, scaled=self.scaled, mask=mask)
        return bias


def _vectors(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(*shape))


def _draw(module: torch.nn.Module, std: float) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=std)
