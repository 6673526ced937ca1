#!/usr/bin/env python3
"""Machines with little memory: a small /dev/shm, and a model that is larger than the memory."""

import json
import shutil
import subprocess
import time
import unittest

import launched
from launched import SAMPLE, LaunchedTest, bits, make_model, settings

MEDIUM_SIZES = dict(hidden_size=320, intermediate_size=1280, num_hidden_layers=4)  # 6 million parameters: a store of 98 MB


class SmallSharedMemoryTest(LaunchedTest):
    """Runs with the /dev/shm of containers, which has 64 MiB or less: a tmpfs in a mount namespace of the run."""

    def on_small_shm(self, mib: int, *launch: str, **changes) -> subprocess.CompletedProcess:
        command = ["unshare", "--mount", "bash", "-c",
                   f'mount -t tmpfs -o size={mib}m rp-test /dev/shm || exit 99; "$@"; code=$?; ls -A /dev/shm; exit $code',
                   "bash", *self.command(settings(self.output, **changes), ["--workers", "2", *launch])]
        process = subprocess.run(command, capture_output=True, text=True, timeout=launched.DEADLINE_S)
        if process.returncode == 99 or "unshare:" in process.stderr:
            self.skipTest("needs the right to mount: " + process.stderr)
        self.assert_nothing_left()
        return process

    def test_memfd_is_taken_by_itself_and_gives_the_same_bits(self):
        model = make_model(self.directory / "medium", **MEDIUM_SIZES)
        self.run_train(settings(self.directory / "roomy", model=model))
        for mib in (8, 64):
            with self.subTest(mib=mib):
                process = self.on_small_shm(mib, model=model)
                self.assertEqual(process.returncode, 0, process.stderr)
                self.assertEqual((process.stdout + process.stderr).count("memfd"), 1, process.stdout + process.stderr)
                self.assertEqual(bits(self.output), bits(self.directory / "roomy"))
                shutil.rmtree(self.output)

    def test_forced_shm_is_refused_within_a_second(self):
        model = make_model(self.directory / "medium", **MEDIUM_SIZES)
        for mib in (8, 64):
            with self.subTest(mib=mib):
                start = time.monotonic()
                process = self.on_small_shm(mib, "--store", "shm", model=model)
                self.assertLess(time.monotonic() - start, 1)
                self.assertEqual(process.returncode, 69, process.stdout + process.stderr)
                for part in ("/dev/shm", "MiB", "--store memfd"):
                    self.assertIn(part, process.stderr)
                self.assertEqual(process.stderr.count("error"), 1, process.stderr)
                self.assertFalse(self.output.exists())


class TooLargeModelTest(LaunchedTest):
    def test_too_little_memory_is_69_before_anything_is_written(self):
        """Uses a model that needs 1.5 times the machine's memory, and whose weights are a hole in a file."""
        with open("/proc/meminfo") as file:
            total = int(file.readline().split()[1]) * 1024
        config = json.loads((SAMPLE / "model" / "config.json").read_text())
        hidden, inner = 4096, 16384
        layer = 4 * hidden * hidden + 3 * hidden * inner
        config |= {"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": 32, "num_key_value_heads": 32,
                   "head_dim": hidden // 32, "num_hidden_layers": int(1.5 * total / 16 / layer) + 1}
        model = self.directory / "model"
        shutil.copytree(SAMPLE / "model", model)
        (model / "config.json").write_text(json.dumps(config))
        shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
        for i in range(config["num_hidden_layers"]):
            for name, shape in {"input_layernorm": [hidden], "post_attention_layernorm": [hidden],
                                "self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [hidden, hidden],
                                "self_attn.v_proj": [hidden, hidden], "self_attn.o_proj": [hidden, hidden],
                                "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
                                "mlp.down_proj": [hidden, inner]}.items():
                shapes[f"model.layers.{i}.{name}.weight"] = shape
        end, header = 0, {}
        for name, shape in shapes.items():
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        with open(model / "model.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        for _ in range(5):
            start = time.monotonic()
            message = self.refused(69, "the host store needs", model=model, save_every="never")
            self.assertLess(time.monotonic() - start, 5)
            self.assertIn("of memory are available", message)


if __name__ == "__main__":
    unittest.main()
