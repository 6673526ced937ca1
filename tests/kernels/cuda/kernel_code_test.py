#!/usr/bin/env python3
"""The code that nvcc generates for kernels/cuda: whole packs are loaded and stored by 16 bytes, no kernel spills
registers, and the norm's gradient lets a multiprocessor run at least half of its threads, and issues its loads before
it waits. The test needs no GPU; how GPUs run this code is tested by scripts/gpu-check.sh.

Usage: kernel_code_test.py DIRECTORY, which has the build's PTX and messages of each source."""

import re
import sys
import unittest
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "kernels" / "cuda"
DIRECTORY = Path(sys.argv.pop(1))
GENERATIONS = (80, 86, 89, 90, 120)
# For a multiprocessor of each generation (CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability"): threads, blocks, and bytes of shared memory, of which each block occupies
# 1024 more than it requests. All have 65,536 registers, allocated to warps in units of 256.
MULTIPROCESSORS = {80: (2048, 32, 164 << 10), 86: (1536, 16, 100 << 10), 89: (1536, 24, 100 << 10), 90: (2048, 32, 228 << 10),
                   120: (1536, 24, 100 << 10)}
# The minimum number of 16-byte loads and stores in a kernel's instances for aligned arrays.
ACCESSES = {"cross_entropy_rows": (2, 2), "embed_rows": (1, 1), "embed_grad_rows": (2, 1), "round_elements": (1, 1), "scale_elements": (1, 1),
            "rms_norm_rows": (3, 1), "rms_norm_grad_rows": (6, 2), "rotate_rows": (4, 2), "glu_elements": (2, 1),
            "glu_grad_elements": (3, 2), "expand_half_bytes": (0, 1), "expand_fp8_rows": (0, 1)}


def instances(ptx: str) -> dict[str, str]:
    """Returns the code of each entry, by its name."""
    parts = re.split(r"^(?:\.visible |\.weak )?\.entry (\w+)\(", ptx, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def is_aligned(kernel: str, name: str) -> bool:
    """Returns whether this is an instance of the kernel for aligned arrays. That is the first condition after its
    element type."""
    return re.search(rf"\d{kernel}I(?:f|NS0_4(?:Bf16|Fp16)E)Lb1E", name) is not None


@dataclass(frozen=True)
class Use:
    """The resources that one kernel needs on one generation."""
    kernel: str
    generation: int
    registers: int
    shared_bytes: int
    spilled: int


def uses(said: str) -> list[Use]:
    """Parses the output of ptxas -v."""
    found = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\d+)'(?:(?!Compiling entry).)*?(\d+) bytes spill stores"
                       r"(?:(?!Compiling entry).)*?Used (\d+) registers([^\n]*)", said, re.DOTALL)
    return [Use(kernel, int(generation), int(registers), sum(map(int, re.findall(r"(\d+) bytes smem", rest))), int(spilled))
            for kernel, generation, spilled, registers, rest in found]


def resident_threads(use: Use, block: int) -> int:
    """Returns the number of threads that fit on one multiprocessor in blocks of `block` threads."""
    threads, blocks, shared_bytes = MULTIPROCESSORS[use.generation]
    warps = block // 32
    by_registers = 65536 // (-(-use.registers * 32 // 256) * 256) // warps
    by_memory = shared_bytes // (use.shared_bytes + 1024)
    return min(threads // block, blocks, by_registers, by_memory) * block


class KernelCodeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        names = sorted(source.stem for source in SOURCES.glob("*.cu"))
        cls.uses = [use for name in names for use in uses((DIRECTORY / f"{name}.ptxas").read_text())]
        cls.kernels = {name: instances((DIRECTORY / f"{name}.ptx").read_text()) for name in names}

    def test_whole_packs_are_loaded_and_stored_by_16_bytes(self):
        found = set()
        for kernels in self.kernels.values():
            for name, code in kernels.items():
                kernel = next((kernel for kernel in ACCESSES if is_aligned(kernel, name)), None)
                if kernel is None:
                    continue
                found.add(kernel)
                counts = len(re.findall(r"ld\.global\.v4", code)), len(re.findall(r"st\.global\.v4", code))
                for what, count, least in zip(("loads", "stores"), counts, ACCESSES[kernel]):
                    self.assertGreaterEqual(count, least, f"{what} of {name}")
        self.assertEqual(found, set(ACCESSES))

    def test_the_norms_gradient_loads_nothing_between_its_barrier_and_its_store(self):
        waits = 0
        for name, code in self.kernels["rms_norm"].items():
            if not is_aligned("rms_norm_grad_rows", name):
                continue
            for after in re.findall(r"bar\.sync(.*?)st\.global\.v4", code, re.DOTALL):
                waits += 1
                self.assertEqual(re.findall(r"ld\.global\S*", after), [], name)
        self.assertGreaterEqual(waits, 12)  # one for each instance

    def test_experts_products_copy_by_16_bytes_and_multiply_fragments(self):
        aligned = {name: code for name, code in self.kernels["grouped_product"].items()
                   if re.search(r"multiply_groupsI(?:f|NS0_4(?:Bf16|Fp16)E)Lb1E", name)}
        self.assertEqual(len(aligned), 9)
        for name, code in aligned.items():
            self.assertIn("cp.async.cg.shared.global", code, name)
            self.assertEqual(re.findall(r"ld\.global\.[ub](?:16|32)", code), [], name)
            products = len(re.findall(r"mma\.sync\.aligned\.m16n8k16", code))
            self.assertEqual(products, 0 if "multiply_groupsIf" in name else 32, name)

    def test_two_blocks_of_experts_products_are_on_a_multiprocessor(self):
        products = [use for use in self.uses if "multiply_groups" in use.kernel]
        self.assertEqual(len(products), 18 * len(GENERATIONS))
        for use in products:
            self.assertGreaterEqual(resident_threads(use, 256), 512, use)

    def test_two_blocks_of_linear_attentions_products_are_on_a_multiprocessor(self):
        products = [use for use in self.uses if re.search("weigh_chunks|carry_states|carry_gradients|finish_gradients", use.kernel)]
        self.assertEqual(len(products), (3 + 6 + 6 + 3) * len(GENERATIONS))
        for use in products:
            self.assertGreaterEqual(resident_threads(use, 256), 512, use)

    def test_no_kernel_spills_registers(self):
        spills = {(use.kernel, use.generation): use.spilled for use in self.uses}
        self.assertEqual({generation for _, generation in spills}, set(GENERATIONS))
        self.assertEqual({use: spilled for use, spilled in spills.items() if spilled}, {})

    def test_the_norms_gradient_leaves_half_of_a_multiprocessors_threads_resident(self):
        norms = [use for use in self.uses if "rms_norm_grad_rows" in use.kernel]
        self.assertEqual(len(norms), 24 * len(GENERATIONS))
        for use in norms:
            for size in (128, 256, 512, 1024):  # threads_of_row()
                self.assertGreaterEqual(resident_threads(use, size), MULTIPROCESSORS[use.generation][0] // 2, (use, size))


if __name__ == "__main__":
    unittest.main()
