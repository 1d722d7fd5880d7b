"""The search for LongRoPE's factors: evolution over one rescale factor a pair (Ding et al. 2024)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from posenc_ref.checks import Array, check_number, check_size


class SearchResult(NamedTuple):
    """What :func:`search` found."""

    factors: Array
    """Best factors λ_g, float64 ``(pairs,)``, for ``short_factor`` or ``long_factor`` of LongRoPE."""
    score: float
    """Their score."""
    history: list[float]
    """Best score of the first population and after each iteration; never rises."""
    evaluations: int
    """How often ``score`` was called; no factors are scored twice."""


def search(
    score: Callable[[Array], float],
    *,
    factor: float,
    starts: Sequence[Array],
    rng: np.random.Generator,
    population: int = 64,
    parents: int = 32,
    mutations: int = 16,
    crossovers: int = 16,
    iterations: int = 40,
    mutation_probability: float = 0.3,
    step: float = 0.01,
) -> SearchResult:
    """Look for the factors λ_0 ≤ λ_1 ≤ … that make ``score`` smallest.

    Each iteration keeps the best ``parents`` ever seen and adds children of two kinds. A mutation draws each λ_g
    anew, with ``mutation_probability``, between its neighbours; a crossover takes each λ_g from one of two parents
    and sorts them. All λ lie between 1 and 1.25·s, in multiples of ``step`` above 1.

    Parameters
    ----------
    score : a function of ``(pairs,)`` factors, such as perplexity on long texts with θ_g/λ_g. Smaller is better;
        NaN counts as infinite. It is what takes the time.
    factor : s, how many times longer the context shall be.
    starts : factors to begin with, each ``(pairs,)``. The paper takes those of PI, NTK-aware and YaRN, that is
        the ratio of the frequencies before and after. They are sorted and fitted to the bounds and steps.
    rng : makes the search repeatable, as in ``np.random.default_rng(0)``.

    Raises
    ------
    ValueError : sizes, factor or starts out of range, or no finite score among the first population.

    Source: algorithm 1, table 4 and section 3.2 of arXiv:2402.13753, with its settings as defaults. Differences: the
    paper does not say how it restores the order after crossover (sorting here); its n̂ is not searched.

    >>> goal = np.array([1.0, 1.5, 3.0, 4.0])
    >>> def distance(factors):
    ...     return abs(factors - goal).sum()
    >>> found = search(distance, factor=4, starts=[np.full(4, 4.0)], rng=np.random.default_rng(0))
    >>> distance(np.full(4, 4.0)), bool(found.score < 0.5), bool((np.diff(found.factors) >= 0).all())
    (np.float64(6.5), True, True)
    """
    sizes = {"population": population, "parents": parents, "mutations": mutations, "crossovers": crossovers}
    for name, size in (sizes | {"iterations": iterations}).items():
        check_size(name, size)
    if check_number("mutation_probability", mutation_probability, 0) > 1:
        raise ValueError(f"mutation_probability must be at most 1, got {mutation_probability}")
    # λ is 1 + step · a whole number from 0 to `largest`; a candidate holds these whole numbers
    highest = 1.25 * check_number("factor", factor, 1) - 1
    if highest / check_number("step", step, 0, above=True) > 1e9:
        raise ValueError(f"step must be at least 1e-9 of the largest factor, {factor}, got {step}")
    largest = math.floor(highest / step + 1e-9)
    seen: dict[tuple[int, ...], float] = {}

    def evaluate(candidate: Array) -> tuple[int, ...]:
        key = tuple(candidate.tolist())
        if key not in seen:
            value = float(score(1 + step * candidate))
            seen[key] = math.inf if math.isnan(value) else value
        return key

    def mutate(candidate: Array) -> Array:
        child = candidate.copy()
        for g in np.flatnonzero(rng.random(len(child)) < mutation_probability):
            low = child[g - 1] if g else 0
            high = child[g + 1] if g + 1 < len(child) else largest
            child[g] = rng.integers(low, high, endpoint=True)
        return child

    def cross(one: Array, other: Array) -> Array:
        return np.sort(np.where(rng.random(len(one)) < 0.5, one, other))

    def select(keys: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return sorted(dict.fromkeys(keys), key=seen.__getitem__)[:parents]  # of equals, the earlier stays first

    first = [np.sort(np.clip(np.rint((s - 1) / step), 0, largest)).astype(np.int64) for s in _arrays(starts)]
    kept = [evaluate(start) for start in first]
    kept += [evaluate(mutate(first[i % len(first)])) for i in range(population - len(first))]
    kept = select(kept)
    if math.isinf(seen[kept[0]]):
        raise ValueError(f"score must be finite for some of the first {len(seen)} candidates, got {seen[kept[0]]}")
    history = [seen[kept[0]]]
    for _ in range(iterations):
        parent = np.array(kept)
        children = [mutate(parent[rng.integers(len(parent))]) for _ in range(mutations)]
        children += [cross(*parent[rng.integers(len(parent), size=2)]) for _ in range(crossovers)]
        kept = select(kept + [evaluate(child) for child in children])
        history.append(seen[kept[0]])
    return SearchResult(1 + step * np.array(kept[0]), history[-1], history, len(seen))


def _arrays(starts: Sequence[Array]) -> list[Array]:
    try:
        arrays = [np.asarray(start, dtype=np.float64) for start in starts]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"starts must be arrays of numbers, got {starts!r}") from None
    if not arrays or any(a.ndim != 1 or a.shape != arrays[0].shape or not a.size for a in arrays):
        raise ValueError(
            f"starts must be one or more arrays of one shape (pairs,), got {[a.shape for a in arrays]} from {starts!r}"
        )
    for array in arrays:
        if not np.isfinite(array).all():
            raise ValueError(f"starts must be finite, got {array}")
    return arrays
