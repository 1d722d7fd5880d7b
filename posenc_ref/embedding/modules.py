"""The learned position vectors as PyTorch modules, thin over the functions beside them. Importing this needs torch."""

from typing import ClassVar

import torch
from torch import Tensor

from posenc_ref.attention import Encoding, Spec
from posenc_ref.checks import check_choice, check_number, check_size
from posenc_ref.embedding.floater import STEPS, Method, floater, mlp_field
from posenc_ref.embedding.learned import add, check_integers, check_rows, look_up
from posenc_ref.embedding.multiplicative import multiply


class PositionTable(torch.nn.Module, Encoding):
    """A table with a row for each of ``num_positions`` positions, behind ``offset`` rows that no position reads.

    Its entries start normal, with ``mean`` and ``init_std``. Base of the two encodings below.
    """

    def __init__(self, num_positions: int, d_model: int, *, offset: int, mean: float, init_std: float) -> None:
        super().__init__()
        self.offset, self.mean = check_size("offset", offset, minimum=0), mean
        self.init_std = check_number("init_std", init_std, 0)
        rows = check_size("num_positions", num_positions) + offset
        self.table = torch.nn.Parameter(torch.empty(rows, check_size("d_model", d_model)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        torch.nn.init.normal_(self.table, self.mean, self.init_std)

    def forward(self, positions: Tensor) -> Tensor:
        """Return the rows ``(…, d_model)`` of integer positions ``(…)``; IndexError for one without a row.

        Compiled code cannot look at the positions first: there the error is PyTorch's own, an assertion on a GPU.
        """
        if torch.compiler.is_compiling():
            check_integers(positions)
        else:
            check_rows(positions, self.table.shape[0], self.offset)
        rows: Tensor = look_up(positions, self.table, self.offset)
        return rows


class LearnedEmbedding(PositionTable):
    """Adds row ``position + offset`` of a learned table to the embeddings; see :func:`posenc_ref.embedding.learned`.

    ``offset`` is 0 for BERT and GPT-2, padding_idx + 1 for RoBERTa, 2 for OPT: their table for 512 positions has 512
    or 514 rows. It starts with standard deviation 0.02, as in BERT.

    >>> roberta = LearnedEmbedding(512, 8, offset=2)
    >>> roberta.table.shape, roberta.embed(torch.zeros(1, 4, 8), positions=torch.arange(508, 512)).shape
    (torch.Size([514, 8]), torch.Size([1, 4, 8]))
    """

    spec: ClassVar[Spec] = Spec(
        "learned", "embedding", shift_invariant=False, any_length=False, learned=True,
        source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
        parameters="(num_positions + offset) · d_model", cost="S·d_model, once",
    )  # fmt: skip

    def __init__(self, num_positions: int, d_model: int, *, offset: int, init_std: float = 0.02) -> None:
        super().__init__(num_positions, d_model, offset=offset, mean=0.0, init_std=init_std)

    def embed(self, x: Tensor, *, positions: Tensor) -> Tensor:
        """Return ``x + table[positions + offset]``, of the dtype of ``x``; the sum is rounded once."""
        embedded: Tensor = add(x, self(positions), positions=positions)
        return embedded


class MultiplicativeEmbedding(PositionTable):
    """Multiplies the embeddings by the rows of a learned table; see :func:`posenc_ref.embedding.multiply`.

    The table starts around ones, which would be no encoding: its entries are normal with ``init_std``.

    >>> flat = MultiplicativeEmbedding(512, 8, init_std=0.0)
    >>> flat.embed(torch.full((1, 1, 2), 3.0).repeat(1, 1, 4), positions=torch.arange(1)).unique().item()
    3.0
    """

    spec: ClassVar[Spec] = Spec(
        "multiplicative", "embedding", shift_invariant=False, any_length=False, learned=True,
        source="Henaff et al. 2017, section 2.1, equation 1, arXiv:1612.03969",
        parameters="(num_positions + offset) · d_model", cost="S·d_model, once",
    )  # fmt: skip

    def __init__(self, num_positions: int, d_model: int, *, init_std: float = 0.02) -> None:
        super().__init__(num_positions, d_model, offset=0, mean=1.0, init_std=init_std)

    def embed(self, x: Tensor, *, positions: Tensor) -> Tensor:
        """Return ``x ⊙ table[positions]``, of the dtype of ``x``; the product is rounded once."""
        embedded: Tensor = multiply(x, self(positions), positions=positions)
        return embedded


class Floater(torch.nn.Module, Encoding):
    """Adds :func:`posenc_ref.embedding.floater` vectors to the embeddings; the start and the field are learned.

    The field is :func:`posenc_ref.embedding.mlp_field` with ``width`` hidden units (default d_model, as in the
    authors' code). There, every layer has trajectories of its own, added to its queries, keys and values; here there
    is one, added once, before the first layer.

    The forward pass takes ``substeps`` · max(positions) steps one after the other, and training keeps all of them in
    memory. How many depends on the positions: torch.compile leaves the integrator out, rather than unroll another
    graph for each length.

    >>> Floater(8).embed(torch.zeros(1, 3, 8), positions=torch.arange(3)).shape
    torch.Size([1, 3, 8])
    """

    spec: ClassVar[Spec] = Spec(
        "floater", "embedding", shift_invariant=False, any_length=True, learned=True,
        source="Liu et al. 2020, section 3, arXiv:2003.09229",
        parameters="2 · d_model · width + 2 · width + 3 · d_model", cost="S·d_model², once, one step after the other",
    )  # fmt: skip

    def __init__(
        self,
        d_model: int,
        *,
        width: int | None = None,
        delta: float = 0.01,
        substeps: int = 5,
        method: Method = "rk4",
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        d_model = check_size("d_model", d_model)
        width = d_model if width is None else check_size("width", width)
        self.delta, self.substeps = check_number("delta", delta, 0, above=True), check_size("substeps", substeps)
        self.init_std = check_number("init_std", init_std, 0)
        self.method: Method = method
        check_choice("method", method, tuple(STEPS))
        self.hidden = torch.nn.Linear(d_model + 1, width)
        self.out = torch.nn.Linear(width + 1, d_model)
        self.start = torch.nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start, normal with ``init_std``, and the field, Xavier-normal with biases 0, anew."""
        torch.nn.init.normal_(self.start, std=self.init_std)
        for layer in (self.hidden, self.out):
            torch.nn.init.xavier_normal_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def field(self, t: float, p: Tensor) -> Tensor:
        """Return the velocity of ``p`` at time ``t``."""
        weights = {
            "hidden_weight": self.hidden.weight,
            "hidden_bias": self.hidden.bias,
            "out_weight": self.out.weight,
            "out_bias": self.out.bias,
        }
        velocity: Tensor = mlp_field(t, p, **weights)
        return velocity

    @torch.compiler.disable(reason="as many steps as the positions ask for")  # type: ignore[no-untyped-call, untyped-decorator]
    def forward(self, positions: Tensor) -> Tensor:
        """Return the position vectors ``(…, d_model)``, float32 or float64."""
        vectors: Tensor = floater(
            positions, self.start, self.field, delta=self.delta, substeps=self.substeps, method=self.method
        )
        return vectors

    def embed(self, x: Tensor, *, positions: Tensor) -> Tensor:
        """Return ``x + p(positions)``, of the dtype of ``x``; the sum is rounded once."""
        embedded: Tensor = add(x, self(positions), positions=positions)
        return embedded
