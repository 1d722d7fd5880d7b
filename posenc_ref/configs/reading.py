"""Reading a ``config.json`` with care: each field is checked for type and range, and what was read is remembered."""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

MOST = 10**6
"""No published head, layer count or list is near it; a larger number is a slip, and would fill the memory."""


class ConfigError(ValueError):
    """The file cannot be read for sure; the message names field, value and rule."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class Fields:
    """A JSON object whose fields are asked for by name and type; ``unread`` tells which never were.

    >>> fields = Fields({"factor": "8"}, "rope_scaling")
    >>> fields.number("factor")
    Traceback (most recent call last):
    posenc_ref.configs.reading.ConfigError: rope_scaling.factor must be a number, got the text "8"
    """

    def __init__(self, content: Mapping[str, Any], path: str = "", names: Mapping[str, tuple[str, ...]] | None = None):
        self.content = dict(content)
        self.path = path
        self.names = names or {}
        self.read: set[str] = set()

    def place(self, name: str) -> str:
        """Return the name as an error should show it: with the object that holds it."""
        return f"{self.path}.{name}" if self.path else name

    def name(self, name: str) -> str:
        """Return the name under which the file has the field: the first of its names that is there and not null."""
        spellings = (*self.names.get(name, ()), name)
        return next((n for n in spellings if self.content.get(n) is not None), spellings[0])

    def has(self, name: str) -> bool:
        """Is the field there, and not null?"""
        return self.content.get(self.name(name)) is not None

    def get(self, name: str) -> Any:
        """Return the value under whichever name, None if absent, and remember that it was read."""
        self.read.update((*self.names.get(name, ()), name))
        return self.content.get(self.name(name))

    def integer(self, name: str, minimum: int = 1, maximum: int = sys.maxsize) -> int | None:
        """Return a whole number, or None."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "a whole number", value)
        if not minimum <= value <= maximum:
            raise self.wrong(name, f"from {minimum} to {maximum}" if maximum < sys.maxsize else f">= {minimum}", value)
        return value

    def number(self, name: str, minimum: float = -math.inf, *, above: bool = False) -> float | None:
        """Return a finite number, or None."""
        value = self.get(name)
        return None if value is None else self.finite(name, value, minimum, above)

    def finite(self, name: str, value: Any, minimum: float, above: bool) -> float:
        """Return ``value`` as a float if it is a finite number in the range; raise otherwise."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number", value)
        if abs(value) > sys.float_info.max or value != value:
            raise self.wrong(name, "finite", value)
        if value < minimum or (above and value <= minimum):
            raise self.wrong(name, f"{'>' if above else '>='} {minimum:g}", value)
        return float(value)

    def flag(self, name: str) -> bool | None:
        """Return true, false or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        """Return a text, or None."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text", value)
        return value

    def items(self, name: str, length: int | None = None) -> list[Any] | None:
        """Return a list, of that length if it is given, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.wrong(name, "a list", value)
        if length is not None and len(value) != length:
            raise ConfigError(f"{self.place(self.name(name))} must have {length} entries, got {len(value)}")
        return value

    def numbers(self, name: str, length: int) -> list[float] | None:
        """Return a list of so many positive numbers, or None."""
        values = self.items(name, length)
        return values and [self.finite(f"{self.name(name)}[{i}]", v, 0, True) for i, v in enumerate(values)]

    def table(self, name: str) -> "Fields | None":
        """Return an object, or None if it is absent, null or empty."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object { … }", value)
        return Fields(value, self.place(name)) if value else None

    def wrong(self, name: str, rule: str, value: Any) -> ConfigError:
        """Return the error for a value that breaks a rule."""
        return ConfigError(f"{self.place(self.name(name))} must be {rule}, got {show(value)}")

    def missing(self, name: str, why: str) -> ConfigError:
        """Return the error for a field that is needed and absent."""
        return ConfigError(f"{self.place(self.name(name))} is missing: {why}")

    def unread(self) -> list[str]:
        """Return the names of fields with a value that nothing asked for."""
        return [n for n, value in self.content.items() if n not in self.read and value is not None]


def printable(text: str) -> str:
    """The text in one line: names and values of a file may hold line breaks and codes that steer a terminal.

    >>> printable("a\\nb")
    'a\\\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(value: Any) -> str:
    """Show a JSON value in an error, short.

    >>> show("yarn"), show([1, 2]), show(None)
    ('the text "yarn"', 'a list', 'null')
    """
    if isinstance(value, str):
        return f'the text "{value[:40]}"'
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"
    return text if len(text) <= 40 else text[:37] + "…"


def parse(text: str) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Refused: what is no JSON, no object, NaN and Infinity (which JSON does not have), and a name given twice.

    >>> parse('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    posenc_ref.configs.reading.ConfigError: the file gives "a" twice
    """

    def constant(name: str) -> Any:
        raise ConfigError(f"the file holds {name}, which is no JSON number")

    def pairs(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in items:
            if name in found:
                raise ConfigError(f'the file gives "{name}" twice')
            found[name] = value
        return found

    try:
        content = json.loads(text, parse_constant=constant, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the file is no JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except ConfigError:
        raise
    except (RecursionError, ValueError):  # nested too deep; integers of thousands of digits
        raise ConfigError("the file is no JSON that can be read: nested too deep, or a number too long") from None
    if not isinstance(content, dict):
        raise ConfigError(f"the file must hold an object {{ … }}, got {show(content)}")
    return content
