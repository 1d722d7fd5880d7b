"""Writing a file at once or not at all."""

import os
import secrets
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, text: str | Iterable[str]) -> None:
    """Write a file at once or not at all, even if the machine stops; no link at ``path`` is followed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), "whole")
    ...     [(file.name, file.read_text()) for file in Path(folder).iterdir()]
    [('a.txt', 'whole')]
    """
    temporary = path.with_name(f".{path.name[:60]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            for part in [text] if isinstance(text, str) else text:
                file.write(part.encode("utf-8", "backslashreplace"))  # a learner's text may hold half a character
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
