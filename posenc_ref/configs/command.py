"""The command ``posenc config``."""

import argparse
import json
import sys
from pathlib import Path

from posenc_ref.configs.model import read_config
from posenc_ref.configs.report import as_json, as_text, plot


def main(arguments: list[str]) -> int:
    """Run ``posenc config FILE``; returns the exit status: 0, or 2 if the file cannot be read for sure.

    >>> main(["no such file"])
    2
    """
    parser = argparse.ArgumentParser(
        prog="posenc config", description="Say in plain words what a model's config.json does with position."
    )
    parser.add_argument("file", help="a config.json in the style of Hugging Face; - reads standard input")
    parser.add_argument("--json", action="store_true", help="print JSON: all frequencies and the whole test vector")
    parser.add_argument("--plot", metavar="FILE.png", help="draw wavelengths, slopes or buckets (needs matplotlib)")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
        model = read_config(text.removeprefix("\ufeff"))
        said = json.dumps(as_json(model), indent=2, allow_nan=False) if options.json else as_text(model)
    except (ValueError, OverflowError) as error:  # a ConfigError, no UTF-8, numbers beyond all bounds
        print(f"posenc config: {options.file}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # no such file, a folder
        print(f"posenc config: {error}", file=sys.stderr)
        return 2
    try:
        if options.plot is not None:
            plot(model, options.plot)
    except ImportError:
        print("posenc config: --plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:  # nothing to draw, an unknown ending, a folder that is not there
        print(f"posenc config: {str(error) if '--plot' in str(error) else f'--plot: {error}'}", file=sys.stderr)
        return 2
    print(said)
    return 0
