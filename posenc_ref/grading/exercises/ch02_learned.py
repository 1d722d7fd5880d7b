"""Exercises of chapter 02: learned position vectors."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from posenc_ref.embedding.learned import learned, padded_rows
from posenc_ref.grading.exercise import Exercise, Mistake, Property, integers, quarters, sizes
from posenc_ref.positions import positions_from_mask

TITLE = "learned positions"

# --- 2.1 a lookup that owns up


def _look_up(positions: Any, table: Any, offset: int) -> Any:
    found = [0 <= p < len(table) - offset for p in positions]
    vectors = np.zeros((len(positions), table.shape[1]))
    for vector, p, has_row in zip(vectors, positions, found, strict=True):
        if has_row:
            vector[:] = learned(p[None], table, offset=offset)[0]
    return vectors, ~np.array(found)


def _without(positions: Any, table: Any, missing: Any, offset: int) -> Any:
    """Rows where ``missing`` is False, zeros elsewhere; too large a row raises, a negative one wraps around."""
    rows = table[np.where(missing, 0, positions + offset)]
    rows[missing] = 0.0
    return rows, missing


def _from_the_end(positions: Any, table: Any, offset: int) -> Any:
    return _without(positions, table, positions >= len(table) - offset, offset)


def _read_first(positions: Any, table: Any, offset: int) -> Any:
    return table[positions + offset], _look_up(positions, table, offset)[1]


def _rows_in_front(positions: Any, table: Any, offset: int) -> Any:
    row = positions + offset
    return _without(positions, table, (row < 0) | (row >= len(table)), offset)


def _clamped(positions: Any, table: Any, offset: int) -> Any:
    row = np.clip(positions + offset, 0, len(table) - 1)
    return table[row], np.zeros(len(positions), bool)


def _clamped_but_flagged(positions: Any, table: Any, offset: int) -> Any:
    return table[np.clip(positions + offset, 0, len(table) - 1)], _look_up(positions, table, offset)[1]


def _row_0_kept(positions: Any, table: Any, offset: int) -> Any:
    missing = _look_up(positions, table, offset)[1]
    return table[np.where(missing, 0, positions + offset)], missing


def _no_offset(positions: Any, table: Any, offset: int) -> Any:
    return _look_up(positions, table, 0)


def _offset_in_the_length_only(positions: Any, table: Any, offset: int) -> Any:
    missing = _look_up(positions, table, offset)[1]
    return _without(positions, table, missing, 0)


def _all_rows_count(positions: Any, table: Any, offset: int) -> Any:
    return _without(positions, table, (positions < 0) | (positions >= len(table)), offset)


def _last_row_lost(positions: Any, table: Any, offset: int) -> Any:
    return _look_up(positions, table[:-1], offset)


def _flags_reversed(positions: Any, table: Any, offset: int) -> Any:
    vectors, missing = _look_up(positions, table, offset)
    return vectors, ~missing


def _look_up_masked(positions: Any, table: Any, offset: int) -> Any:
    missing = (positions < 0) | (positions + offset >= len(table))
    rows = np.where(missing, 0, positions + offset)
    return np.where(missing[:, None], 0.0, table[rows]), missing


def _look_up_one_hot(positions: Any, table: Any, offset: int) -> Any:
    one_hot = (positions[:, None] == np.arange(len(table) - offset)).astype(float)
    return one_hot @ table[offset:], one_hot.sum(axis=1) == 0


@st.composite
def _positions_and_table(draw: Any) -> Any:
    seq, places, d = draw(sizes(1, 2, 4)), draw(sizes(1, 3, 5)), draw(sizes(1, 2))
    offset = draw(st.sampled_from([0, 1, 2, 3]))
    table = np.arange(1.0, (places + offset) * d + 1).reshape(-1, d)  # no two entries are equal
    return draw(integers(seq, low=-2 - offset, high=places + 3)), table, offset


def _rows_put_in_front(look_up: Any, positions: Any, table: Any, offset: int) -> Any:
    more = np.concatenate([np.full((2, table.shape[1]), 99.0), table])
    return look_up(positions, more, offset + 2), look_up(positions, table, offset)


_LOOK_UP = Exercise(
    id="learned.look_up",
    number="2.1",
    chapter="02_learned",
    title="A lookup that says when it fails",
    minutes=10,
    difficulty=1,
    function="look_up",
    reference=_look_up,
    inputs=_positions_and_table(),
    edges={
        "the last row, and the first position without one": (
            np.array([3, 4, 0]),
            np.arange(1.0, 13.0).reshape(6, 2),
            2,
        ),
        "negative positions": (np.array([-1, 0, -2, -7]), np.arange(1.0, 13.0).reshape(6, 2), 2),
    },
    properties=(Property("two more rows in front and an offset larger by 2 change nothing", _rows_put_in_front),),
    mistakes=(
        Mistake(
            _from_the_end,
            "A negative position reads some row of the table, and NumPy says nothing: −1 is its last row.",
            "which positions can be too small, and what does table[-1] give?",
        ),
        Mistake(
            _read_first,
            "The table is read at positions that have no row. Most of them raise an IndexError; those just below 0 "
            "read another row in silence.",
            "which row can you read safely in place of a missing one?",
        ),
        Mistake(
            _rows_in_front,
            "A negative position reads one of the rows in front of position 0. They belong to no position.",
            "test the position itself against 0, not the row.",
        ),
        Mistake(
            _clamped,
            "Positions without a row get the nearest row there is, and are not reported. A wrong answer "
            "that looks right is the worst kind.",
            "what should `missing` be for a position beyond the table?",
        ),
        Mistake(
            _clamped_but_flagged,
            "The flags are right, but positions without a row still get somebody else's row. They should get zeros.",
            "set the vectors to 0 where missing is True.",
        ),
        Mistake(
            _row_0_kept,
            "The flags are right, but positions without a row get row 0 of the table. They should get zeros.",
            "set the vectors to 0 where missing is True.",
        ),
        Mistake(
            _no_offset,
            "The offset is ignored: position 0 is row `offset` of the table, not row 0.",
            "use a table whose first rows are easy to recognise, and an offset of 2.",
        ),
        Mistake(
            _offset_in_the_length_only,
            "The flags respect the offset, but the row that is read does not: position p is row p + offset.",
            "where is position 0 when the offset is 2?",
        ),
        Mistake(
            _all_rows_count,
            "All rows are counted as positions. The first `offset` of them are not, so that the last positions have no "
            "row: a table of 514 rows with offset 2 serves 512.",
            "compare the row p + offset with len(table), or p with len(table) − offset.",
        ),
        Mistake(
            _last_row_lost,
            "The last row of the table is never used: positions are 0 … len(table) − offset − 1, both included.",
            "does a table of one row, with offset 0, serve position 0?",
        ),
        Mistake(
            _flags_reversed,
            "The flags are the wrong way round: True should mean that the row is missing.",
            "what is missing when all positions have a row?",
        ),
    ),
    alternatives=(_look_up_masked, _look_up_one_hot),
)

# --- 2.2 rows from token ids, as RoBERTa counts


def _position_rows(input_ids: Any, padding_idx: int) -> Any:
    return padded_rows(input_ids != padding_idx, offset=padding_idx + 1)


def _places(input_ids: Any) -> Any:
    return np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)


def _padding_ignored(input_ids: Any, padding_idx: int) -> Any:
    return _places(input_ids) + padding_idx + 1


def _place_in_the_row(input_ids: Any, padding_idx: int) -> Any:
    return np.where(input_ids == padding_idx, padding_idx, _places(input_ids) + padding_idx + 1)


def _one_too_low(input_ids: Any, padding_idx: int) -> Any:
    real = input_ids != padding_idx
    return np.where(real, _position_rows(input_ids, padding_idx) - 1, padding_idx)


def _positions_for_rows(input_ids: Any, padding_idx: int) -> Any:
    real = (input_ids != padding_idx).astype(np.int64)
    return real.cumsum(axis=1) * real


def _padding_keeps_the_count(input_ids: Any, padding_idx: int) -> Any:
    return (input_ids != padding_idx).cumsum(axis=1) + padding_idx


def _position_plus_offset(input_ids: Any, padding_idx: int) -> Any:
    return np.maximum(_padding_keeps_the_count(input_ids, padding_idx), padding_idx + 1)


def _all_padding_in_front(input_ids: Any, padding_idx: int) -> Any:
    padding = input_ids == padding_idx
    rows = _places(input_ids) - padding.sum(axis=1, keepdims=True) + padding_idx + 1
    return np.where(padding, padding_idx, rows)


def _padding_gets_row_0(input_ids: Any, padding_idx: int) -> Any:
    return np.where(input_ids == padding_idx, 0, _position_rows(input_ids, padding_idx))


def _zero_is_padding(input_ids: Any, padding_idx: int) -> Any:
    return padded_rows(input_ids != 0, offset=padding_idx + 1)


def _small_ids_are_padding(input_ids: Any, padding_idx: int) -> Any:
    return padded_rows(input_ids > padding_idx, offset=padding_idx + 1)


def _one_is_padding(input_ids: Any, padding_idx: int) -> Any:
    return padded_rows(input_ids != padding_idx, offset=2)


def _down_the_batch(input_ids: Any, padding_idx: int) -> Any:
    return _position_rows(input_ids.T, padding_idx).T


def _one_count_for_the_batch(input_ids: Any, padding_idx: int) -> Any:
    return _position_rows(input_ids.reshape(1, -1), padding_idx).reshape(input_ids.shape)


def _rows_loops(input_ids: Any, padding_idx: int) -> Any:
    rows = np.full(input_ids.shape, padding_idx, dtype=np.int64)
    for text, row in zip(input_ids, rows, strict=True):
        met = 0
        for t, id in enumerate(text):
            if id != padding_idx:
                met += 1
                row[t] = padding_idx + met
    return rows


def _rows_matrix(input_ids: Any, padding_idx: int) -> Any:
    real = (input_ids != padding_idx).astype(np.int64)  # (batch, seq)
    up_to = np.triu(np.ones((input_ids.shape[1], input_ids.shape[1]), dtype=np.int64))  # [u, t]: u ≤ t
    return padding_idx + real * (real @ up_to)


@st.composite
def _ids_and_padding(draw: Any) -> Any:
    batch, seq, padding_idx = draw(sizes(1, 2, 3)), draw(sizes(1, 4, 5)), draw(st.sampled_from([1, 3, 0]))
    ids = draw(integers(batch, seq, low=0, high=6))
    for row in ids:
        left = draw(st.integers(0, seq))
        row[:left] = padding_idx
        row[seq - draw(st.integers(0, seq - left)) :] = padding_idx
    return ids, padding_idx


def _alone_or_padded(position_rows: Any, input_ids: Any, padding_idx: int) -> Any:
    real = input_ids != padding_idx
    texts = [ids[keep] for ids, keep in zip(input_ids, real, strict=True) if keep.any()]  # no text of no tokens
    alone = [row for text in texts for row in position_rows(text[None], padding_idx)[0]]
    return position_rows(input_ids, padding_idx)[real], np.array(alone, dtype=np.int64)


_POSITION_ROWS = Exercise(
    id="learned.position_rows",
    number="2.2",
    chapter="02_learned",
    title="Rows from token ids, with padding",
    minutes=10,
    difficulty=2,
    function="position_rows",
    reference=_position_rows,
    inputs=_ids_and_padding(),
    edges={
        "padding on either side, padding_idx 1": (np.array([[1, 1, 5, 6, 2], [0, 5, 2, 1, 1], [0, 5, 6, 6, 2]]), 1),
        "padding_idx 3": (np.array([[4, 5, 6, 7], [3, 3, 4, 0]]), 3),
    },
    properties=(Property("a padded text reads the rows that it reads alone", _alone_or_padded),),
    mistakes=(
        Mistake(
            _padding_ignored,
            "These are the rows of 0, 1, 2, … whatever the tokens are. Padding on the left pushes the text to later "
            "rows, and padding itself should read row padding_idx.",
            "the same text with and without two padding tokens in front: which rows does it read?",
        ),
        Mistake(
            _place_in_the_row,
            "Padding is right, but real tokens get their place in the padded row. With padding on the left the text "
            "moves to later rows.",
            "count the real tokens instead of the columns.",
        ),
        Mistake(
            _one_too_low,
            "Real tokens begin one row too low: the first of them reads row padding_idx, which is for padding.",
            "the first real token reads row padding_idx + 1. What does a cumulative sum start with?",
        ),
        Mistake(
            _positions_for_rows,
            "These are counts of real tokens. The rows of the table lie padding_idx further.",
            "for padding_idx = 1, which row has the first real token?",
        ),
        Mistake(
            _padding_keeps_the_count,
            "Padding at the end repeats the row of the last real token. Padding should read row padding_idx.",
            "multiply the count by the mask before you add padding_idx.",
        ),
        Mistake(
            _position_plus_offset,
            "Real tokens are right. Padding in front reads the row of position 0, and padding at the end that of the "
            "last real token. All padding should read row padding_idx.",
            "multiply the count by the mask before you add padding_idx.",
        ),
        Mistake(
            _all_padding_in_front,
            "The number of all padding tokens is taken off the place. That is right if all of them stand before the "
            "token, and only then.",
            "count the real tokens up to this one, whatever comes after it.",
        ),
        Mistake(
            _padding_gets_row_0,
            "Real tokens are right, but padding reads row 0. It should read row padding_idx.",
            "what is added to the count, for every token?",
        ),
        Mistake(
            _zero_is_padding,
            "Token id 0 is taken for padding. Which id is padding, padding_idx says; in RoBERTa's vocabulary 0 opens a "
            "text.",
            "compare the ids with padding_idx.",
        ),
        Mistake(
            _small_ids_are_padding,
            "Ids below padding_idx are taken for padding too. Only padding_idx is.",
            "compare with !=, not with >.",
        ),
        Mistake(
            _one_is_padding,
            "The rows start at 2 whatever padding_idx is. That is right for padding_idx = 1 only.",
            "which row has the first real token when padding_idx is 3?",
        ),
        Mistake(
            _down_the_batch,
            "The count runs down the batch, from text to text. It should run along each text.",
            "which axis of (batch, seq) is the text?",
        ),
        Mistake(
            _one_count_for_the_batch,
            "One count runs through the whole batch. Each text should start anew.",
            "np.cumsum without an axis flattens the array first.",
        ),
    ),
    alternatives=(_rows_loops, _rows_matrix),
)

# --- 2.3 in how many steps does a row learn


def _expected_steps(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    # the distribution of the longest text of a batch, one more text at a time
    longest = {0: 1.0}
    for _ in range(batch):
        joined: dict[int, float] = {}
        for a, chance in longest.items():
            for b, q in zip(lengths.tolist(), probabilities.tolist(), strict=True):
                joined[max(a, b)] = joined.get(max(a, b), 0.0) + chance * q
        longest = joined
    return steps * np.array([sum((q for n, q in longest.items() if n > p), 0.0) for p in range(rows)])


def _reach(lengths: Any, probabilities: Any, rows: int) -> Any:
    return (lengths > np.arange(rows)[:, None]) @ probabilities


def _off_by_one(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return _expected_steps(lengths + 1, probabilities, batch, steps, rows)


def _off_by_one_below(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return _expected_steps(lengths - 1, probabilities, batch, steps, rows)


def _chance_in_a_step(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return _expected_steps(lengths, probabilities, batch, 1, rows)


def _texts(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * batch * _reach(lengths, probabilities, rows)


def _texts_capped(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * np.minimum(1.0, batch * _reach(lengths, probabilities, rows))


def _one_text(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * _reach(lengths, probabilities, rows)


def _all_of_them(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * _reach(lengths, probabilities, rows) ** batch


def _none_of_them(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * (1 - _reach(lengths, probabilities, rows)) ** batch


def _exactly_that_long(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    ends = (lengths == np.arange(1, rows + 1)[:, None]) @ probabilities
    return steps * (1 - (1 - ends) ** batch)


def _mean_length(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * (np.arange(rows) < lengths @ probabilities).astype(float)


def _chances_forgotten(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    equal = np.full(len(lengths), 1 / len(lengths))
    return _expected_steps(lengths, equal, batch, steps, rows)


def _steps_closed_form(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    return steps * (1 - (1 - _reach(lengths, probabilities, rows)) ** batch)


def _steps_loops(lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    result = np.zeros(rows)
    for p in range(rows):
        too_short = sum(q for n, q in zip(lengths, probabilities, strict=True) if n <= p)
        result[p] = steps - steps * too_short**batch
    return result


@st.composite
def _length_distribution(draw: Any) -> Any:
    kinds = draw(sizes(1, 2, 3))
    lengths = np.cumsum(draw(integers(kinds, low=1, high=3)))
    weights = draw(integers(kinds, low=1, high=4)).astype(float)
    order = draw(st.permutations(range(kinds)))
    rows = int(lengths.max()) + draw(sizes(1, 2))
    return (
        lengths[list(order)],
        weights / weights.sum(),
        draw(sizes(1, 2, 3)),
        draw(sizes(1, 8)),
        rows,
    )


def _two_steps(expected_steps: Any, lengths: Any, probabilities: Any, batch: int, steps: int, rows: int) -> Any:
    """A row misses two batches of B if it misses one batch of 2B."""
    one = expected_steps(lengths, probabilities, batch, 1, rows)
    return expected_steps(lengths, probabilities, 2 * batch, 1, rows), 1 - (1 - one) ** 2


_STEPS = Exercise(
    id="learned.expected_steps",
    number="2.3",
    chapter="02_learned",
    title="How often a row learns",
    minutes=15,
    difficulty=2,
    function="expected_steps",
    kinds=("derive",),
    reference=_expected_steps,
    inputs=_length_distribution(),
    edges={
        "one long text in ten": (np.array([4, 2]), np.array([0.1, 0.9]), 4, 1000, 6),
        "three lengths, in any order": (np.array([3, 1, 5]), np.array([0.5, 0.3, 0.2]), 3, 100, 6),
    },
    properties=(Property("one step of 2B texts misses a row as often as two steps of B", _two_steps),),
    mistakes=(
        Mistake(
            _off_by_one,
            "A text of n tokens is taken to reach position n. Its positions are 0 … n − 1.",
            "which rows does a text of one token read?",
        ),
        Mistake(
            _off_by_one_below,
            "A text of n tokens is taken to end at position n − 2. Its positions are 0 … n − 1.",
            "which rows does a text of one token read?",
        ),
        Mistake(
            _chance_in_a_step,
            "These are the chances that a row is read in one step. Asked for is a number of steps.",
            "row 0 is read in each step: what should it get?",
        ),
        Mistake(
            _texts,
            "These are numbers of texts. Asked for are steps: two texts of one batch that reach a row make one step.",
            "can a row learn in more steps than there are?",
        ),
        Mistake(
            _texts_capped,
            "This caps batch · chance, the mean number of texts that reach the row, at 1. A mean is not a chance.",
            "two texts, each reaching the row with chance ½: what is the chance that at least one does?",
        ),
        Mistake(
            _one_text,
            "This is right for a batch of one text. In a larger batch it is enough that one text reaches the row.",
            "what is the chance that none of them does?",
        ),
        Mistake(
            _all_of_them,
            "This asks that all texts of the batch reach the row. One is enough.",
            "what is the chance that none of them does?",
        ),
        Mistake(
            _none_of_them,
            "These are the steps in which the row gets nothing. Asked for are the others.",
            "what should row 0 get, which every text reads?",
        ),
        Mistake(
            _exactly_that_long,
            "This counts texts that end at the row. Longer texts read it as well.",
            "add up the chances of all lengths above p.",
        ),
        Mistake(
            _mean_length,
            "This treats all texts as having the mean length. Rows beyond the mean are read too, only less often.",
            "which rows does the longest text read?",
        ),
        Mistake(
            _chances_forgotten,
            "All lengths are taken to be equally likely, whatever probabilities says.",
            "what if the long texts have probability 0.1?",
        ),
    ),
    alternatives=(_steps_closed_form, _steps_loops),
)

# --- 2.4 the gradient of the table


def _table_gradient(positions: Any, upstream: Any, rows: int) -> Any:
    one_hot = (positions[..., None] == np.arange(rows)).astype(float)  # (batch, seq, rows)
    return np.einsum("btr,btd->rd", one_hot, upstream)


def _last_one_wins(positions: Any, upstream: Any, rows: int) -> Any:
    gradient = np.zeros((rows, upstream.shape[2]))
    gradient[positions] += upstream
    return gradient


def _last_of_a_text_wins(positions: Any, upstream: Any, rows: int) -> Any:
    gradient = np.zeros((rows, upstream.shape[2]))
    for read, g in zip(positions, upstream, strict=True):
        gradient[read] += g
    return gradient


def _last_of_a_place_wins(positions: Any, upstream: Any, rows: int) -> Any:
    return _last_of_a_text_wins(positions.T, np.swapaxes(upstream, 0, 1), rows)


def _mean_of_readers(positions: Any, upstream: Any, rows: int) -> Any:
    readers = (positions[..., None] == np.arange(rows)).sum(axis=(0, 1))
    return _table_gradient(positions, upstream, rows) / np.maximum(readers, 1)[:, None]


def _mean_of_batch(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(positions, upstream, rows) / len(positions)


def _mean_of_tokens(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(positions, upstream, rows) / positions.size


def _by_place(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(np.broadcast_to(np.arange(positions.shape[1]), positions.shape), upstream, rows)


def _first_text(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(positions[:1], upstream[:1], rows)


def _rows_reversed(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(positions, upstream, rows)[::-1]


def _to_every_row(positions: Any, upstream: Any, rows: int) -> Any:
    return np.broadcast_to(upstream.sum(axis=(0, 1)), (rows, upstream.shape[2])).copy()


def _last_text(positions: Any, upstream: Any, rows: int) -> Any:
    return _table_gradient(positions[-1:], upstream[-1:], rows)


def _gradient_loops(positions: Any, upstream: Any, rows: int) -> Any:
    gradient = np.zeros((rows, upstream.shape[2]))
    for place in np.ndindex(positions.shape):
        gradient[positions[place]] += upstream[place]
    return gradient


def _gradient_add_at(positions: Any, upstream: Any, rows: int) -> Any:
    gradient = np.zeros((rows, upstream.shape[2]))
    np.add.at(gradient, positions, upstream)
    return gradient


@st.composite
def _read_and_upstream(draw: Any) -> Any:
    batch, seq, d, rows = draw(sizes(1, 2, 3)), draw(sizes(1, 2, 4)), draw(sizes(1, 2)), draw(sizes(5, 6))
    return draw(integers(batch, seq, low=0, high=4)), draw(quarters(batch, seq, d)), rows


def _against_the_table(table_gradient: Any, positions: Any, upstream: Any, rows: int) -> Any:
    """The change of Σ upstream · table[positions] along a direction, read off the loss itself, which is linear."""
    direction = np.cos(np.arange(rows * upstream.shape[2])).reshape(rows, -1)
    return np.sum(table_gradient(positions, upstream, rows) * direction), np.sum(upstream * direction[positions])


_GRADIENT = Exercise(
    id="learned.table_gradient",
    number="2.4",
    chapter="02_learned",
    title="The gradient of the table",
    minutes=12,
    difficulty=2,
    function="table_gradient",
    reference=_table_gradient,
    inputs=_read_and_upstream(),
    edges={
        "two texts that start at 0": (np.array([[0, 1, 2], [0, 1, 2]]), np.arange(1.0, 7.0).reshape(2, 3, 1), 5),
        "padding that repeats a position": (np.array([[0, 0, 0, 1]]), np.arange(1.0, 9.0).reshape(1, 4, 2), 3),
    },
    properties=(Property("a small change of the table changes the loss as the gradient says", _against_the_table),),
    mistakes=(
        Mistake(
            _last_one_wins,
            "Where several tokens read a row, only the last of them counts. NumPy's gradient[positions] += g reads all "
            "rows first and writes each back once per token, so that the last write wins.",
            "two tokens, both at position 0, upstream 1 and 2. Do you get 3?",
        ),
        Mistake(
            _last_of_a_text_wins,
            "Within a text, the last token that reads a row wins. A text may read a row twice, and gradient[rows] += g "
            "adds once for each row, not once for each token.",
            "one text, two tokens at position 0, upstream 1 and 2. Do you get 3?",
        ),
        Mistake(
            _last_of_a_place_wins,
            "Of the texts that read a row at the same place, the last one wins: gradient[rows] += g adds once for each "
            "row, not once for each token.",
            "two texts of one token at position 0, upstream 1 and 2. Do you get 3?",
        ),
        Mistake(
            _mean_of_readers,
            "The row gets the mean over the tokens that read it. The chain rule asks for the sum.",
            "a loss that is a sum over tokens changes by how much, if two of them read the row?",
        ),
        Mistake(
            _mean_of_batch,
            "The sum is divided by the number of texts. If the loss is a mean, upstream contains that already.",
            "one text twice in a batch: should the gradient double?",
        ),
        Mistake(
            _mean_of_tokens,
            "The sum is divided by the number of tokens. If the loss is a mean, upstream contains that already.",
            "one text twice in a batch: should the gradient double?",
        ),
        Mistake(
            _by_place,
            "Token t is taken to stand at position t. Its position is positions[b, t].",
            "one token whose position is 3: which row learns?",
        ),
        Mistake(
            _first_text,
            "Only the first text counts. All texts of the batch read the one table.",
            "two texts, each of one token at position 0. Do both count?",
        ),
        Mistake(
            _last_text,
            "Only the last text counts: the sum is reset between texts.",
            "where do you set the gradient to zero, before or inside the loop over texts?",
        ),
        Mistake(
            _to_every_row,
            "Every row gets the sum over all tokens. A token's gradient goes to the one row that it read.",
            "one token at position 3: what should row 0 get?",
        ),
        Mistake(
            _rows_reversed,
            "The rows are in reverse order.",
            "one token at position 0: which row learns?",
        ),
    ),
    alternatives=(_gradient_loops, _gradient_add_at),
)

# --- 2.5 is this a bug?


def _right_rows(attention_mask: Any, offset: int) -> Any:
    return positions_from_mask(attention_mask) + offset


def _is_a_bug(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    right = _right_rows(attention_mask, offset)[:, attention_mask.shape[1] - rows_read.shape[1] :]
    real = attention_mask[:, attention_mask.shape[1] - rows_read.shape[1] :] == 1
    return np.any((rows_read != right) & real, axis=1)


def _new(attention_mask: Any, rows_read: Any) -> Any:
    return attention_mask[:, attention_mask.shape[1] - rows_read.shape[1] :]


def _padding_must_match(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    right = _right_rows(attention_mask, offset)
    return np.any(rows_read != _new(right, rows_read), axis=1)


def _first_columns(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return _is_a_bug(attention_mask[:, : rows_read.shape[1]], rows_read, offset)


def _cache_forgotten(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return _is_a_bug(_new(attention_mask, rows_read), rows_read, offset)


def _padding_counted(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    columns = np.broadcast_to(np.arange(attention_mask.shape[1]), attention_mask.shape) + offset
    return np.any((rows_read != _new(columns, rows_read)) & (_new(attention_mask, rows_read) == 1), axis=1)


def _cached_padding_counted(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    cached = attention_mask.shape[1] - rows_read.shape[1]
    return _is_a_bug(_new(attention_mask, rows_read), rows_read - cached, offset)


def _offset_ignored(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return _is_a_bug(attention_mask, rows_read, 0)


def _steps_of_one_are_fine(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    wrong = []
    for real, rows in zip(_new(attention_mask, rows_read) == 1, rows_read, strict=True):
        wrong.append(any(b != a + 1 for a, b in pairwise(rows[real])))
    return np.array(wrong)


def _one_verdict(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return np.full(len(rows_read), _is_a_bug(attention_mask, rows_read, offset).any())


def _all_must_be_wrong(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    right = _new(_right_rows(attention_mask, offset), rows_read)
    return np.all((rows_read != right) | (_new(attention_mask, rows_read) == 0), axis=1)


def _order_ignored(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    right = _new(_right_rows(attention_mask, offset), rows_read)
    real = _new(attention_mask, rows_read) == 1
    return np.array([set(a[r]) != set(b[r]) for a, b, r in zip(rows_read, right, real, strict=True)])


def _last_token_only(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return _is_a_bug(attention_mask, rows_read[:, -1:], offset)


def _right_is_a_bug(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    return ~_is_a_bug(attention_mask, rows_read, offset)


def _bug_loops(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    found = np.zeros(len(rows_read), dtype=bool)
    for b, (mask, rows) in enumerate(zip(attention_mask, rows_read, strict=True)):
        cached = len(mask) - len(rows)
        for t, row in enumerate(rows):
            before = int(mask[: cached + t].sum())
            found[b] |= bool(mask[cached + t] and row != before + offset)
    return found


def _bug_cumsum(attention_mask: Any, rows_read: Any, offset: int) -> Any:
    right = np.cumsum(attention_mask, axis=1) - 1 + offset
    wrong = (_new(right, rows_read) - rows_read) * _new(attention_mask, rows_read)
    return abs(wrong).sum(axis=1) > 0


@st.composite
def _reports(draw: Any) -> Any:
    batch, cached, new = draw(sizes(1, 2, 3)), draw(sizes(0, 2, 3)), draw(sizes(1, 2, 4))
    offset = draw(st.sampled_from([0, 2, 1]))
    mask = np.ones((batch, cached + new), dtype=np.int64)
    rows = np.empty((batch, new), dtype=np.int64)
    kinds = ("right", "columns", "cache forgotten", "other offset", "cached columns", "one wrong", "reversed")
    for b in range(batch):
        mask[b, : draw(st.integers(0, cached + new - 1))] = 0
        if draw(st.booleans()):
            mask[b, cached + new - draw(st.integers(0, new)) :] = 0
        kind = draw(st.sampled_from(kinds))
        own = mask[b : b + 1]
        right = _right_rows(own, offset)[0, cached:]
        rows[b] = {
            "right": right,
            "columns": np.arange(cached, cached + new) + offset,
            "cache forgotten": _right_rows(own[:, cached:], offset)[0],
            "other offset": right - offset,
            "cached columns": _right_rows(own[:, cached:], offset)[0] + cached,
            "one wrong": right + (np.arange(new) == new - 1),
            "reversed": right,
        }[kind]
        if kind == "reversed":  # every row is read, by another token: no total can tell
            real = mask[b, cached:] == 1
            rows[b, real] = right[real][::-1]
        rows[b, mask[b, cached:] == 0] = draw(st.sampled_from([max(offset - 1, 0), 1, 0]))  # padding reads anything
    return mask, rows, offset


def _padding_does_not_matter(is_a_bug: Any, attention_mask: Any, rows_read: Any, offset: int) -> Any:
    other = np.where(_new(attention_mask, rows_read) == 1, rows_read, 77)
    return is_a_bug(attention_mask, other, offset), is_a_bug(attention_mask, rows_read, offset)


_IS_A_BUG = Exercise(
    id="learned.is_a_bug",
    number="2.5",
    chapter="02_learned",
    title="A bug, or a convention",
    minutes=20,
    difficulty=3,
    function="is_a_bug",
    kinds=("bug",),
    reference=_is_a_bug,
    inputs=_reports(),
    edges={
        "report A": (np.array([[0, 0, 1, 1]]), np.array([[0, 1, 2, 3]]), 0),
        "report B": (np.array([[1, 1, 1]]), np.array([[2, 3, 4]]), 2),
        "report C": (np.array([[0, 0, 1, 1]]), np.array([[1, 1, 0, 1]]), 0),
        "report D": (np.array([[0, 1, 1, 1], [1, 1, 1, 1]]), np.array([[5], [5]]), 2),
        "the right rows, exchanged": (np.array([[1, 1, 1, 1]]), np.array([[0, 2, 1, 3]]), 0),
    },
    properties=(Property("the rows that padding reads do not matter", _padding_does_not_matter),),
    mistakes=(
        Mistake(
            _padding_must_match,
            "Padding is judged as well. Nobody attends to it, so that the row it reads cannot change a result.",
            "report C: which tokens read another row than alone, and who sees them?",
        ),
        Mistake(
            _first_columns,
            "The first columns of the mask are compared. The new tokens are the last ones; before them is the cache.",
            "how many columns of attention_mask belong to the cache?",
        ),
        Mistake(
            _cache_forgotten,
            "The count starts at the new tokens. Real tokens in the cache come before them.",
            "three real tokens are cached: at which position stands the next one?",
        ),
        Mistake(
            _padding_counted,
            "The columns are counted, with padding. Positions count real tokens: padding in front must move nothing.",
            "report A: which row does the first real token read when the text comes alone?",
        ),
        Mistake(
            _cached_padding_counted,
            "In the new columns only real tokens are counted, but of the cache every column is.",
            "report D: how many real tokens are in the cache of the first text?",
        ),
        Mistake(
            _offset_ignored,
            "The offset is ignored: position 0 is row `offset`, and that is no bug.",
            "report B: which row has the first token of such a model?",
        ),
        Mistake(
            _steps_of_one_are_fine,
            "This only asks that the rows grow by one. A text that is shifted as a whole reads the wrong rows too.",
            "report A: rows 2, 3 grow by one. Are they what the text reads alone?",
        ),
        Mistake(
            _one_verdict,
            "One text with a bug makes you accuse the whole batch. Asked for is a verdict on each text.",
            "report D: are both texts wrong?",
        ),
        Mistake(
            _all_must_be_wrong,
            "This asks that every real token reads a wrong row. One is enough.",
            "rows 0, 1, 7 for a text of three tokens: is that right?",
        ),
        Mistake(
            _order_ignored,
            "The right rows are read, but by the wrong tokens: this compares which rows are read, not who reads them.",
            "rows 0, 2, 1 for a text of three tokens: is that right?",
        ),
        Mistake(
            _last_token_only,
            "Only the last token is judged. One wrong row anywhere among the real new tokens is a bug.",
            "rows 0, 2, 1, 3 for a text of four tokens: is that right?",
        ),
        Mistake(
            _right_is_a_bug,
            "The verdicts are the wrong way round: True should mean that there is a bug.",
            "rows 0, 1, 2 for a text of three tokens, offset 0: is that a bug?",
        ),
    ),
    alternatives=(_bug_loops, _bug_cumsum),
)

# --- 2.6 a layer, in PyTorch


def _layer(table: Any, positions: Any, offset: int, upstream: Any) -> Any:
    y, gradient = np.zeros_like(upstream), np.zeros_like(table)
    for t, p in enumerate(positions):
        if p >= 0:
            y[t] = table[p + offset]
            gradient[p + offset] += upstream[t]
    return y, gradient, True


def _use_layer(answer: Any, table: Any, positions: Any, offset: Any, upstream: Any) -> Any:
    import torch

    layer = answer(len(table), table.shape[1], offset)
    begun = bool((layer.weight == 0).all())
    with torch.no_grad():
        layer.weight.copy_(table)
    layer(positions[:1].clamp(min=0))  # what one call leaves must not spoil the next
    y = layer(positions)
    if y.requires_grad:  # nothing but padding may be a constant
        y.backward(upstream)
    gradient = torch.zeros_like(table) if layer.weight.grad is None else layer.weight.grad.clone()
    low = layer.to(torch.bfloat16)(positions).dtype == torch.bfloat16
    return y, gradient, begun and low and [*layer.state_dict()] == ["weight"]


def _as_layer(forward: Any) -> Any:
    """A layer out of its forward pass: what a learner's class with that method would be."""

    def build(rows: int, dim: int, offset: int) -> Any:
        import torch

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(rows, dim))

            def forward(self, positions: Any) -> Any:
                return forward(torch, self.weight, positions, offset)

        return Layer()

    build.__name__ = forward.__name__
    return build


@_as_layer
def _layer_offset_forgotten(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight[positions.clamp(min=0)] * (positions >= 0)[:, None]


@_as_layer
def _layer_wraps(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight[positions + offset]


@_as_layer
def _layer_clamped(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight[positions.clamp(min=0) + offset]


@_as_layer
def _layer_clamped_late(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight[(positions + offset).clamp(min=0)]


@_as_layer
def _layer_values_only(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    y = weight[positions.clamp(min=0) + offset]
    y.data[positions < 0] = 0
    return y


@_as_layer
def _layer_by_frequency(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    rows, real = positions.clamp(min=0) + offset, positions >= 0
    return torch.nn.functional.embedding(rows, weight, scale_grad_by_freq=True) * real[:, None]


@_as_layer
def _layer_row_zero(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    rows, real = positions.clamp(min=0) + offset, positions >= 0
    return torch.nn.functional.embedding(rows, weight, padding_idx=0) * real[:, None]


@_as_layer
def _layer_detached(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight.data[positions.clamp(min=0) + offset] * (positions >= 0)[:, None]


@_as_layer
def _layer_by_mask(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    return weight[positions.clamp(min=0) + offset] * (positions >= 0)[:, None]


def _layer_offset_saved(rows: int, dim: int, offset: int) -> Any:
    import torch

    layer = _layer_by_mask(rows, dim, offset)
    layer.register_buffer("offset", torch.tensor(offset))
    return layer


@_as_layer
def _layer_with_a_row_of_zeros(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    longer = torch.cat([weight, torch.zeros(1, weight.shape[1], dtype=weight.dtype)])
    return torch.nn.functional.embedding(torch.where(positions < 0, len(weight), positions + offset), longer)


@_as_layer
def _layer_by_product(torch: Any, weight: Any, positions: Any, offset: int) -> Any:
    one_hot = positions[:, None] + offset == torch.arange(len(weight))
    return (one_hot & (positions >= 0)[:, None]).to(weight.dtype) @ weight


@st.composite
def _batches(draw: Any) -> Any:
    rows, dim, offset, length = draw(sizes(3, 4, 5)), draw(sizes(1, 2, 3)), draw(sizes(0, 1, 2)), draw(sizes(1, 2, 4))
    positions = draw(integers(length, low=-1, high=rows - offset - 1))
    table, upstream = draw(quarters(rows, dim)), draw(quarters(length, dim))
    return table.astype(np.float32), positions, offset, upstream.astype(np.float32)


_COUNTING = np.arange(12.0, dtype=np.float32).reshape(6, 2)

_LAYER = Exercise(
    id="learned.layer",
    number="2.6",
    chapter="02_learned",
    title="A layer that trains the rows it reads",
    minutes=15,
    difficulty=2,
    function="LearnedPositions",
    reference=_layer,
    use=_use_layer,
    asks=("rows", "dim", "offset"),
    kinds=("torch",),
    inputs=_batches(),
    edges={
        "padding on the left, offset 2": (_COUNTING, np.array([-1, -1, 0, 1, 3]), 2, _COUNTING[:5] + 1),
        "a position twice, no offset": (_COUNTING, np.array([0, 5, 0]), 0, _COUNTING[1:4]),
        "padding only": (_COUNTING, np.array([-1, -1]), 1, _COUNTING[:2] + 1),
        "padding, no offset": (_COUNTING, np.array([-1, 0, 2]), 0, _COUNTING[:3] + 1),
    },
    mistakes=(
        Mistake(
            _layer_offset_forgotten,
            "The offset is not added: position 0 reads row 0. It reads row offset.",
            "which row does OPT read for its first token?",
        ),
        Mistake(
            _layer_wraps,
            "Padding reads a row: −1 + offset is an index too, and Python takes −1 as the last row. Padding gets the "
            "zero vector.",
            "which row does your layer read for position −1 when the offset is 0? And when it is 1?",
        ),
        Mistake(
            _layer_clamped,
            "Padding reads the row of the first position, and trains it. It gets the zero vector, and sends no "
            "gradient.",
            "multiply by the mask, or pick from a row of zeros.",
        ),
        Mistake(
            _layer_clamped_late,
            "Padding reads the row at or before the first position, and trains it. It gets the zero vector, and sends "
            "no gradient.",
            "multiply by the mask, or pick from a row of zeros.",
        ),
        Mistake(
            _layer_values_only,
            "The values are right, the gradient is not: writing zeros past autograd leaves the path to the row that "
            "padding read.",
            "make the zeros by an operation that autograd sees, such as a product with the mask.",
        ),
        Mistake(
            _layer_by_frequency,
            "The gradient of a row is divided by the number of tokens that read it (scale_grad_by_freq). It is a sum.",
            "which gradient has a row that two tokens read, each with upstream 1?",
        ),
        Mistake(
            _layer_row_zero,
            "With padding_idx=0 the gradient of row 0 is cut, for real tokens as well. Without offset that row "
            "belongs to position 0.",
            "leave padding_idx out: the mask does its work.",
        ),
        Mistake(
            _layer_detached,
            "The result has lost its way back to the parameter (.data, .detach() or no_grad), so nothing is trained.",
            "print y.requires_grad.",
        ),
        Mistake(
            _layer_offset_saved,
            "The outputs are right, yet state_dict holds more than the weight: a buffer is saved unless "
            "persistent=False. Files of other implementations would not load.",
            "keep the offset as a plain number.",
        ),
    ),
    alternatives=(_layer_by_mask, _layer_with_a_row_of_zeros, _layer_by_product),
)

EXERCISES = (_LOOK_UP, _POSITION_ROWS, _STEPS, _GRADIENT, _IS_A_BUG, _LAYER)
