#!/usr/bin/env python3
"""What nvcc makes of cuda/kernels: whole packs are loaded and stored by 16 bytes, and no kernel spills registers. The GPU is not
needed for that; what it makes of them is the matter of scripts/gpu-check.sh."""

import re
import shutil
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
KERNELS = SOURCE / "cuda" / "kernels"
GENERATIONS = (80, 86, 89, 90, 120)
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-fmad=false", f"-I{SOURCE}", f"-I{SOURCE / 'include'}"]
# Loads and stores of 16 bytes that a kernel's aligned instances have at least.
ACCESSES = {"cross_entropy_rows": (2, 2), "embed_rows": (1, 1), "embed_grad_rows": (2, 1), "round_elements": (1, 1), "scale_elements": (1, 1),
            "rms_norm_rows": (3, 1), "rms_norm_grad_rows": (6, 2), "rotate_rows": (4, 2), "swiglu_elements": (2, 1),
            "swiglu_grad_elements": (3, 2)}


def nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def compiled(source: Path, output: Path, *words: str) -> str:
    """What the compiler says."""
    process = subprocess.run([nvcc(), *FLAGS, *words, source, "-o", output], capture_output=True, text=True, timeout=240)
    if process.returncode != 0:
        raise RuntimeError(process.stdout + process.stderr)
    return process.stdout + process.stderr


def instances(ptx: str) -> dict[str, str]:
    """The code of each entry, by its name."""
    parts = re.split(r"^(?:\.visible |\.weak )?\.entry (\w+)\(", ptx, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@unittest.skipUnless(nvcc(), "needs nvcc")
class KernelCodeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="rp-kernels-")
        cls.addClassCleanup(directory.cleanup)
        cls.directory = Path(directory.name)
        cls.sources = sorted(KERNELS.glob("*.cu"))

    def test_whole_packs_are_loaded_and_stored_by_16_bytes(self):
        found = set()
        for source in self.sources:
            output = self.directory / (source.stem + ".ptx")
            compiled(source, output, "-ptx", "-arch=compute_90")
            for name, code in instances(output.read_text()).items():
                kernel = next((kernel for kernel in ACCESSES if re.search(rf"\d{kernel}I\w*?Lb1E", name)), None)
                if kernel is None or re.search(rf"\d{kernel}I\w*?Lb0ELb1E", name):
                    continue  # not aligned: the first of its conditions
                found.add(kernel)
                counts = len(re.findall(r"ld\.global\.v4", code)), len(re.findall(r"st\.global\.v4", code))
                for what, count, least in zip(("loads", "stores"), counts, ACCESSES[kernel]):
                    self.assertGreaterEqual(count, least, f"{what} of {name}")
        self.assertEqual(found, set(ACCESSES))

    def test_no_kernel_spills_registers(self):
        generations = [word for each in GENERATIONS for word in ("-gencode", f"arch=compute_{each},code=sm_{each}")]

        def said(source: Path) -> str:
            return compiled(source, self.directory / (source.stem + ".fatbin"), *generations, "-Xptxas=-v", "-fatbin")

        with ThreadPoolExecutor(2) as pool:
            text = "".join(pool.map(said, self.sources))
        spills = re.findall(r"Compiling entry function '(\w+)' for '(sm_\d+)'(?:(?!Compiling entry).)*?(\d+) bytes spill stores", text, re.DOTALL)
        self.assertEqual({generation for _, generation, _ in spills}, {f"sm_{each}" for each in GENERATIONS})
        self.assertEqual([spill for spill in spills if spill[2] != "0"], [])


if __name__ == "__main__":
    unittest.main()
