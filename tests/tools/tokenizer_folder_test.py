#!/usr/bin/env python3
"""Paths that are not the folder of a model: the error states what the path is and what to pass instead."""

import contextlib
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tiny_tokenizer
from forked_tool import run_forked

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from tokenizer_folder import load_tokenizer, tokenizer_identity  # noqa: E402
from tool import BAD_INPUT, ToolError  # noqa: E402


class TokenizerFolderTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="rp-folder-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def make(self, *names: str) -> Path:
        """Creates files in the directory. Returns the folder of the last one."""
        for name in names:
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
        return path.parent

    def refused(self, folder: Path | str, *parts: str):
        with self.assertRaises(ToolError) as raised:
            load_tokenizer(Path(folder))
        self.assertEqual(raised.exception.code, BAD_INPUT)
        for part in (str(folder), *parts):
            self.assertIn(part, str(raised.exception))

    def test_a_name_of_the_hub_is_refused_with_the_command_that_downloads_it(self):
        self.refused("meta-llama/Llama-3.2-1B", "hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B")
        (self.directory / "runs").mkdir()
        with contextlib.chdir(self.directory):
            for path in (self.directory / "absent", "absent", "../a/b", "a/b/c", "runs/absent"):
                with self.subTest(path), self.assertRaisesRegex(ToolError, "there is no such directory$"):
                    load_tokenizer(Path(path))

    def test_checkpoints_and_outputs_name_the_model(self):
        checkpoint = self.make("run/checkpoint-9/state.json", "run/checkpoint-9/XXH128SUMS", "run/checkpoint-10/state.json",
                               "run/checkpoint-10/XXH128SUMS")
        output = checkpoint.parent
        self.refused(checkpoint, "is a checkpoint of `train`", f"train --model MODEL --export {checkpoint} --output DIR")
        self.refused(output, "is an output directory of `train`", f"--export {checkpoint} ")
        self.make("run/final/adapter_config.json")
        self.refused(checkpoint, "is an adapter", "--save-merged")
        self.refused(output / "final", "is an adapter, which has no tokenizer")
        self.make("run/final/config.json")
        self.refused(checkpoint, f"use {output / 'final'}, which is that of the last step", f"--export {checkpoint} ")
        self.refused(output, f"use {output / 'final'}")
        self.make("run/merged/config.json")
        self.refused(output, f"use {output / 'merged'}")

    def test_what_was_looked_for_is_named(self):
        folder = self.make("model/config.json", "model/vocab.json")
        self.refused(folder, "looked for tokenizer.json, tokenizer.model, vocab.json with merges.txt", "copy tokenizer.json", "hf download")
        self.refused(folder / "config.json", "is not a directory")
        (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
        self.refused(folder, "git lfs pull")
        (folder / "tokenizer.json").write_text("{}")
        self.refused(folder, "no tokenizer can be loaded")

    def test_the_identity_is_that_of_tokenizer_json(self):
        self.assertEqual(tokenizer_identity(self.directory), 0)
        (self.directory / "tokenizer.json").write_text("abc")  # SHA-256: ba7816bf 8f01cfea ...
        self.assertEqual(tokenizer_identity(self.directory), 0xeacf018fbf1678ba)

    def test_ask_says_what_it_was_given(self):
        adapter = self.make("run/checkpoint-3/state.json", "run/checkpoint-3/XXH128SUMS", "run/final/adapter_config.json")
        model = self.make("model/config.json")
        for folder, part in ((adapter, "is a LoRA adapter without its model"), (adapter.parent, "is an output directory"),
                             (model, "has no weights"), (adapter.parent / "checkpoint-3", "is a checkpoint"), ("some-one/some-model", "hf download")):
            with self.subTest(part):
                result = subprocess.run([sys.executable, TOOLS / "ask.py", "--model", folder, "--question", "?"], capture_output=True, text=True)
                self.assertEqual((result.returncode, result.stderr.count("\n"), result.stdout), (BAD_INPUT, 1, ""), result.stderr)
                self.assertIn(part, result.stderr)
        (model / "model.safetensors").write_text("")
        result = subprocess.run([sys.executable, TOOLS / "ask.py", "--model", model, "--question", "?"], capture_output=True, text=True)
        self.assertIn("has no tokenizer (looked for", result.stderr)
        tiny_tokenizer.make(model)
        (model / "config.json").write_text('{"model_type": "llama"}')
        result = run_forked("ask", "--model", model, "--question", "?")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (BAD_INPUT, 1), result.stderr)
        self.assertIn("is no model that transformers loads", result.stderr)


if __name__ == "__main__":
    unittest.main()
