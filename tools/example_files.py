"""Reads files of examples into rows: text files, JSON Lines and JSON arrays, also compressed by gzip."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from tool import BAD_INPUT, USAGE, ToolError

ENDINGS = (".txt", ".jsonl", ".json")


def read_rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yields the file's rows, each with its location for messages. A row of JSON may be anything; a
    text file is one row {"text": ...}."""
    ending = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    if ending not in ENDINGS:
        raise ToolError(USAGE, f"{path}: must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, or in one of them and .gz; "
                               "convert other kinds of files to .jsonl first")
    text = _read_text(path)
    if not text.strip():
        raise ToolError(BAD_INPUT, f"{path}: is empty")
    if ending == ".txt":
        yield str(path), {"text": text}
    elif ending == ".jsonl":
        # Not splitlines(): JSON strings may contain U+2028 and similar characters.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"{path}: line {number}", _parse_line(f"{path}: line {number}", line)
    else:
        for number, row in enumerate(_parse_array(path, text), 1):
            yield f"{path}: entry {number}", row


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")  # with or without the byte order mark that some editors write first
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ToolError(BAD_INPUT, f"{path}: is no whole gzip file: {error}") from error
    except OSError as error:
        raise ToolError(BAD_INPUT, f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        first = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
        raise ToolError(BAD_INPUT, f"{path}: is not UTF-8 at byte {first + error.start}; convert it with `iconv -t UTF-8`") from error


def _refuse_twice(pairs: list) -> dict:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is there twice")
    return members


def _parse_line(place: str, line: str) -> object:
    try:
        row = json.loads(line, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        hint = "; is the file a JSON array? Name it .json then" if line.strip() in ("[", "{", "[{") else ""
        raise ToolError(BAD_INPUT, f"{place}: is not valid JSON: {error}{hint}") from error
    if isinstance(row, list) and row:
        raise ToolError(BAD_INPUT, f"{place}: is an array, not one object; is the file a JSON array? Name it .json then")
    return row


def _parse_array(path: Path, text: str) -> list:
    try:
        rows = json.loads(text, object_pairs_hook=_refuse_twice)
    except (ValueError, RecursionError) as error:
        hint = "; has it one object a line? Name it .jsonl then" if str(error).startswith("Extra data") else ""
        raise ToolError(BAD_INPUT, f"{path}: is not valid JSON: {error}{hint}") from error
    if not isinstance(rows, list):
        raise ToolError(BAD_INPUT, f"{path}: must be an array of objects; a file with one object a line is named .jsonl")
    if not rows:
        raise ToolError(BAD_INPUT, f"{path}: is empty")
    return rows
