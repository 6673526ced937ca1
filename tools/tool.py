"""Shared by the tools: errors with exit codes, and output that appears completely or not at all."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import signal
import sys
import unicodedata
from pathlib import Path


class ToolError(Exception):
    """The user's input or the environment is wrong; `code` is the exit code (docs/exit-codes.md)."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


USAGE = 2
BAD_INPUT = 64
NO_RESOURCE = 69
OUTPUT_FAILED = 74


@contextlib.contextmanager
def partial_path(target: Path):
    """Yields a temporary path next to `target`, where the caller writes a file or directory.
    Renames it to `target` on success, and removes it on failure. An existing file `target` is
    replaced; whether an existing directory is acceptable is up to the caller."""
    target = target.absolute()
    partial = target.parent / f".{target.name}.partial-{secrets.token_hex(4)}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _sync(partial)
        os.rename(partial, target)
        _sync_one(target.parent)
    except OSError as error:
        raise ToolError(OUTPUT_FAILED, f"{error.filename or target}: cannot be written: {error.strerror or error}") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                partial.unlink()


def verify_checksums(directory: Path):
    """Verifies every file that SHA256SUMS in `directory` lists, in the format that `train` writes.
    It must list at least the weights and config.json. Does nothing if there is no such list."""
    listed = directory / "SHA256SUMS"
    if not listed.exists():
        return
    sums = {}
    for line in listed.read_bytes().decode(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        sums[Path(name).name] = expected
    for file in [directory / "config.json", *directory.glob("*.safetensors")]:
        if file.exists() and file.name not in sums:
            raise ToolError(BAD_INPUT, f"{file}: is not listed in SHA256SUMS next to it; if you added it yourself, remove SHA256SUMS")
    for name, expected in sums.items():
        try:
            with open(directory / name, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ToolError(BAD_INPUT, f"{directory / name}: is listed in SHA256SUMS next to it, and cannot be read: {error.strerror}") from error
        if found != expected:
            raise ToolError(BAD_INPUT, f"{directory / name}: does not have its checksum in SHA256SUMS next to it: it was changed or damaged; "
                                       "if you changed it yourself, remove SHA256SUMS")


def _sync(path: Path):
    if path.is_dir():
        for child in path.iterdir():
            _sync(child)
    _sync_one(path)


def _sync_one(path: Path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def printable(text: str, kept: str = "") -> str:
    """Escapes all characters that could control a terminal, e.g. as "\\x1b", except the characters of `kept`."""
    return "".join(c if c in kept or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else
                   c.encode("unicode_escape").decode() for c in text)


def tell(message: str):
    """Prints a line on stderr that begins with the tool's name."""
    print(printable(f"{Path(sys.argv[0]).name}: {message}"), file=sys.stderr)


def run_tool(main):
    """Runs a tool's main(). A ToolError is printed as one line on stderr, and its exit code is
    used. TERM cleans up as Ctrl-C does. If the reader of stdout has gone away, the tool ends as
    other programs end by the signal PIPE."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    try:
        main()
        sys.stdout.flush()
    except ToolError as error:
        tell(str(error))
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # Only errors of stdout: for the files that tools read and write themselves, they raise
        # ToolError.
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own flush
        if error.errno == errno.EPIPE:
            sys.exit(128 + signal.SIGPIPE)
        tell(f"standard output cannot be written: {error.strerror}")
        sys.exit(OUTPUT_FAILED)
