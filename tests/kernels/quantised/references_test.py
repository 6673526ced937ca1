#!/usr/bin/env python3
"""Compares the kernels for quantised weights, bit for bit, with the packages whose files they read: bitsandbytes (NF4) and transformers
(MXFP4, FP8).

    references_test.py WEIGHT_BYTES [unittest's options]
"""

import math
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

os.environ["TORCH_COMPILE_DISABLE"] = "1"  # bitsandbytes compiles some functions at their first call

import bitsandbytes.functional as bnb  # noqa: E402, installed by scripts/setup.sh into a folder of its own
import torch  # noqa: E402
from transformers.integrations.finegrained_fp8 import Fp8Dequantize  # noqa: E402
from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

PROGRAM = ""
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
# Shapes around the borders of blocks: 64 elements, 256 blocks.
SHAPES = [(1, 1), (1, 63), (1, 64), (3, 65), (127, 129), (128, 256), (100, 1000), (64, 256)]


def aligned(size: int) -> int:
    return -(-size // 64) * 64


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def tensor_of(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)


def joined(*parts: torch.Tensor) -> bytes:
    """Returns the parts in our layout: each begins at a multiple of 64 bytes."""
    return b"".join(bytes_of(part).ljust(aligned(part.nbytes), b"\0") for part in parts)


def parted(data: bytes, *parts: tuple[int, torch.dtype]) -> list[torch.Tensor]:
    """Returns the parts of our layout, of which the numbers of elements and the dtypes are given."""
    found, at = [], 0
    for count, dtype in parts:
        size = count * dtype.itemsize
        found.append(tensor_of(data[at:at + size], dtype))
        at += aligned(size)
    return found


def run(*words) -> bytes:
    """Returns what our program writes. The last word is the input's bytes, if there is an input."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        if isinstance(words[-1], bytes):
            files.append(Path(folder) / "input")
            files[0].write_bytes(words[-1])
            words = words[:-1]
        output = Path(folder) / "output"
        subprocess.run([PROGRAM, *map(str, words), *files, output], check=True)
        return output.read_bytes()


def expanded(form: str, shape: tuple[int, int, int], dtype: torch.dtype, data: bytes) -> torch.Tensor:
    return tensor_of(run("expand", form, *shape, NAMES[dtype], data), dtype).view(shape)


def quantised(form: str, weight: torch.Tensor) -> bytes:
    """Quantises one matrix."""
    return run("quantise", form, 1, *weight.shape, NAMES[weight.dtype], bytes_of(weight))


def random_weight(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    weight = torch.randn(shape) * 0.02
    weight[torch.rand(shape) < 0.01] *= 20
    return weight.to(dtype)


class References(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)

    def expect_bits(self, ours: torch.Tensor, theirs: torch.Tensor, what) -> None:
        self.assertEqual((ours.dtype, ours.shape), (theirs.dtype, theirs.shape), what)
        self.assertTrue(torch.equal(bits(ours), bits(theirs)), what)


class Mxfp4Test(References):
    def test_every_byte_with_every_scale_is_expanded_as_by_transformers(self):
        blocks = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 255, 1, 1)
        # 255 is not a number in the format, and there transformers has infinities and NaNs.
        scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1).repeat(1, 1, 16)
        ours = expanded("mxfp4", (1, 255, 512), torch.bfloat16, joined(blocks, scales))
        self.expect_bits(ours, convert_moe_packed_tensors(blocks, scales).transpose(1, 2), "all bytes")

    def test_experts_are_expanded_as_by_transformers(self):
        blocks = torch.randint(256, (3, 50, 6, 16), dtype=torch.uint8)
        scales = torch.randint(110, 130, (3, 50, 6), dtype=torch.uint8)
        ours = expanded("mxfp4", (3, 50, 192), torch.bfloat16, joined(blocks, scales))
        self.expect_bits(ours, convert_moe_packed_tensors(blocks, scales).transpose(1, 2), "experts")


class Fp8Test(References):
    def test_weights_are_expanded_as_by_transformers(self):
        every_code = torch.arange(256, dtype=torch.uint8)
        every_code[every_code & 0x7f == 0x7f] = 0  # NaN may have any bits
        for dtype in NAMES:
            for shape, grid in (((128, 128), (1, 1)), ((256, 384), (2, 3)), ((640, 256), (5, 2))):
                codes = every_code[torch.randint(256, shape)]
                codes.view(-1)[:256] = every_code
                scales = torch.rand(grid) * 0.01
                ours = expanded("fp8-blocks", (1, *shape), dtype, joined(codes, scales))[0]
                theirs = Fp8Dequantize(None)._dequantize_one(codes.view(torch.float8_e4m3fn), scales, output_dtype=dtype)
                self.expect_bits(ours, theirs, (dtype, shape))
                ours = expanded("fp8-tensor", (1, *shape), dtype, joined(codes, scales[:1, :1]))[0]
                theirs = Fp8Dequantize(None)._dequantize_one(codes.view(torch.float8_e4m3fn), scales[0, 0], output_dtype=dtype)
                self.expect_bits(ours, theirs, (dtype, shape, "one scale"))

    def test_weights_are_quantised_with_the_rounding_of_torch(self):
        for dtype in NAMES:
            for rows, columns in SHAPES:
                weight = random_weight((rows, columns), dtype)
                grid = (math.ceil(rows / 128), math.ceil(columns / 128))
                codes, scales = parted(quantised("fp8-blocks", weight), (rows * columns, torch.uint8), (grid[0] * grid[1], torch.float32))
                padded = torch.nn.functional.pad(weight.float(), (0, grid[1] * 128 - columns, 0, grid[0] * 128 - rows))
                largest = padded.view(grid[0], 128, grid[1], 128).abs().amax((1, 3))
                theirs = torch.where(largest > 0, largest / 448, torch.ones(()))
                self.expect_bits(scales.view(grid), theirs, (dtype, rows, columns))
                each = theirs.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
                rounded = (weight.float() / each).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
                self.assertTrue(torch.equal(codes.view(rows, columns), rounded), (dtype, rows, columns))


class Nf4Test(References):
    @staticmethod
    def nested(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantises scales with bitsandbytes' own reference of this operation. Its other implementation for CPUs looks values up in a
        table, and returns a neighbour of the nearest of the 256 values in about one of 700 cases."""
        reference = torch.ops.bitsandbytes.quantize_blockwise.default
        return reference._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, scales, bnb.create_dynamic_map(), 256)

    def parts(self, form: str, weight: torch.Tensor) -> list[torch.Tensor]:
        count = weight.numel()
        scales = math.ceil(count / 64)
        its = [(scales, torch.float32)] if form == "nf4" else [(scales, torch.uint8), (math.ceil(scales / 256), torch.float32), (1, torch.float32)]
        return parted(quantised(form, weight), (math.ceil(count / 2), torch.uint8), *its)

    def test_the_values_of_nested_scales_are_theirs(self):
        self.expect_bits(tensor_of(run("nested-map"), torch.float32), bnb.create_dynamic_map(), "map")

    def test_weights_are_quantised_to_their_bytes(self):
        for dtype in NAMES:
            for shape in SHAPES:
                weight = random_weight(shape, dtype)
                theirs, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
                codes, scales = self.parts("nf4", weight)
                self.expect_bits(scales, state.absmax, (dtype, shape))
                self.assertTrue(torch.equal(codes, theirs.view(-1)), (dtype, shape))

    def test_borders_between_codes_are_quantised_to_their_bytes(self):
        code = bnb.get_4bit_type("nf4", device="cpu")
        borders = (code[:-1] + code[1:]) / 2
        near = torch.cat([borders, borders.nextafter(torch.tensor(2.0)), borders.nextafter(torch.tensor(-2.0))])
        weight = torch.nn.functional.pad(near, (0, 128 - near.numel()), value=1).view(2, 64)
        for factor in (1.0, 0.3, 7e-5):
            theirs, _ = bnb.quantize_4bit(weight * factor, blocksize=64, quant_type="nf4")
            self.assertTrue(torch.equal(self.parts("nf4", weight * factor)[0], theirs.view(-1)), factor)
        for factor in torch.rand(20):
            short = torch.cat([factor.view(1), near * factor]).view(1, -1)
            theirs, _ = bnb.quantize_4bit(short, blocksize=64, quant_type="nf4")
            self.assertTrue(torch.equal(self.parts("nf4", short)[0], theirs.view(-1)), factor)

    def test_scales_are_quantised_to_their_bytes(self):
        for shape in ((128, 128), (256, 512), (300, 1024), (5, 640)):
            # Magnitudes with few bits, so that the mean is the same in every order of summation.
            weight = (torch.randn(shape) * 64).round().clamp(-255, 255) / 4096
            _, simple = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
            offset = simple.absmax.mean()
            _, scales, nested_scales, our_offset = self.parts("nf4-double", weight)
            self.expect_bits(our_offset, offset.view(1), shape)
            their_bytes, their_scales = self.nested(simple.absmax - offset)
            self.expect_bits(nested_scales, their_scales, shape)
            self.assertTrue(torch.equal(scales, their_bytes), shape)

    def test_weights_are_expanded_to_their_bits(self):
        for dtype in NAMES:
            for shape in SHAPES:
                for is_double in (False, True):
                    codes, state = bnb.quantize_4bit(random_weight(shape, dtype), blocksize=64, quant_type="nf4", compress_statistics=is_double)
                    parts = [state.absmax, state.state2.absmax, state.offset] if is_double else [state.absmax]
                    ours = expanded("nf4-double" if is_double else "nf4", (1, *shape), dtype, joined(codes, *parts))[0]
                    self.expect_bits(ours, bnb.dequantize_4bit(codes, state), (dtype, shape, is_double))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    warnings.simplefilter("ignore")
    unittest.main()
