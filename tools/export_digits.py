#!/usr/bin/env python3
"""Writes the handwritten digits that the Python package scikit-learn carries (1797 images of 8x8 pixels) as plain bytes:
for each image its 64 pixels, row by row, 0 (background) to 16, then the digit 0 to 9. Needs no network."""

import argparse
import csv
import gzip
import importlib.util
import zlib
from pathlib import Path

from tool import BAD_INPUT, NO_RESOURCE, ToolError, partial_path, run_tool

NUM_PIXELS = 64


def find_file() -> Path:
    """Returns the package's own copy. Importing the package would need other packages that are not installed."""
    spec = importlib.util.find_spec("sklearn")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz" if spec else None
    if file is None or not file.is_file():
        raise ToolError(NO_RESOURCE, "the Python package scikit-learn is not installed; scripts/setup.sh installs it")
    return file


def read_images(file: Path) -> list[bytes]:
    """Returns one row of bytes for each image."""
    images = []
    try:
        with gzip.open(file, "rt", encoding="ascii") as lines:
            for number, line in enumerate(csv.reader(lines), 1):
                values = [int(float(value)) for value in line]
                if len(values) != NUM_PIXELS + 1 or max(values) > 16 or min(values) < 0 or values[-1] > 9:
                    raise ToolError(BAD_INPUT, f"{file}: line {number} is not 64 pixels from 0 to 16 and a digit")
                images.append(bytes(values))
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ToolError(BAD_INPUT, f"{file}: is no compressed table of numbers: {error}") from error
    except OSError as error:
        raise ToolError(BAD_INPUT, f"{file}: cannot be read: {error.strerror}") from error
    if not images:
        raise ToolError(BAD_INPUT, f"{file}: has no images")
    return images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--input", type=Path, metavar="FILE", help="digits.csv.gz (default: that of scikit-learn)")
    arguments = parser.parse_args()
    images = read_images(arguments.input or find_file())
    with partial_path(arguments.output) as partial:
        partial.write_bytes(b"".join(images))
    print(f"{arguments.output}: {len(images)} images of 8x8 pixels")


if __name__ == "__main__":
    run_tool(main)
