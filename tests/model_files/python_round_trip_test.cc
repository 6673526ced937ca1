// Compares our safetensors files with those of the Python package.
#include <gtest/gtest.h>

#include "model_files/weights/mxfp4.h"
#include "model_files/weights/safetensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "tests/common/run_python.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

TEST(PythonRoundTrip, ThePackageReadsWhatWeWrite) {
  const TempDirectory directory;
  const auto path = directory.file("ours.safetensors");
  const float values[] = {1, -2, 0.5};
  auto writer = SafetensorsWriter::create(path, {{"w.x", DType::kFloat32, {3, 1}}, {"scalar", DType::kInt64, {}}});
  writer.write("w.x", values, sizeof values);
  const std::int64_t number = -7;
  writer.write("scalar", &number, sizeof number);
  writer.commit();
  run_python(R"(
import sys
from safetensors import safe_open
file = safe_open(sys.argv[1], framework="np")
assert file.metadata() == {"format": "pt"}
assert sorted(file.keys()) == ["scalar", "w.x"]
assert file.get_tensor("w.x").tolist() == [[1], [-2], [0.5]]
assert file.get_tensor("scalar").item() == -7
)",
             path);
}

TEST(PythonRoundTrip, WeReadWhatThePackageWrites) {
  const TempDirectory directory;
  const auto path = directory.file("theirs.safetensors");
  run_python(R"(
import sys, numpy
from safetensors.numpy import save_file
types = "float64 float32 float16 int64 int32 int16 int8 uint8 bool".split()
save_file({name: numpy.arange(6).astype(name).reshape(2, 3) for name in types} | {"none": numpy.zeros((0, 4), "float32")},
          sys.argv[1], metadata={"format": "np"})
)",
             path);
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors().size(), 10U);
  EXPECT_EQ(file.tensor("float16").dtype, DType::kFloat16);
  EXPECT_EQ(file.tensor("none").shape, (std::vector<std::int64_t>{0, 4}));
  std::vector<std::int32_t> values(6);
  file.read("int32", values.data(), 24);
  EXPECT_EQ(values, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}));
}

// Scale 255 is not a number in the format, and the two implementations treat it differently.
TEST(PythonRoundTrip, TransformersExpandsMxfp4ToTheSameNumbers) {
  constexpr std::int64_t kScales = 255, kBlocks = 16;  // blocks that contain all byte values
  std::vector<std::uint8_t> blocks, scales;
  for (std::int64_t scale = 0; scale < kScales; ++scale) {
    for (int byte = 0; byte < 256; ++byte) blocks.push_back(static_cast<std::uint8_t>(byte));
    scales.insert(scales.end(), kBlocks, static_cast<std::uint8_t>(scale));
  }
  std::vector<std::uint16_t> numbers(blocks.size() * 2);
  decode_mxfp4(blocks.data(), scales.data(), kScales * kBlocks, numbers.data());
  const TempDirectory directory;
  const auto path = directory.file("ours.safetensors");
  auto writer = SafetensorsWriter::create(path, {{"numbers", DType::kBFloat16, {1, kScales, kBlocks * 32}},
                                                 {"blocks", DType::kUInt8, {1, kScales, kBlocks, 16}},
                                                 {"scales", DType::kUInt8, {1, kScales, kBlocks}}});
  writer.write("numbers", numbers.data(), numbers.size() * sizeof(std::uint16_t));
  writer.write("blocks", blocks.data(), blocks.size());
  writer.write("scales", scales.data(), scales.size());
  writer.commit();
  run_python(R"(
import sys, torch
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
file = load_file(sys.argv[1])
theirs = convert_moe_packed_tensors(file["blocks"], file["scales"]).transpose(1, 2).contiguous()
assert theirs.dtype == torch.bfloat16 and torch.equal(theirs.view(torch.int16), file["numbers"].view(torch.int16))
)",
             path);
}

}  // namespace
}  // namespace rp
