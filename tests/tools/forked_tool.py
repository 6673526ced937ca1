"""Runs a Python tool in a fork of the test, which has already loaded the tokenizers' library. Loading it takes most of
a tool's time."""

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from subprocess import CompletedProcess

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def run_forked(tool: str, *words) -> CompletedProcess:
    """Returns what subprocess.run() would return for the tool with these arguments."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    from transformers import AutoTokenizer  # noqa: F401

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _be_the_tool(TOOLS / f"{tool}.py", words, out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return CompletedProcess(words, code, out.read().decode(), err.read().decode())


def _be_the_tool(script: Path, words: tuple, out: int, err: int) -> None:
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = [str(script), *map(str, words)]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
