// Compares our safetensors files with those of the Python package.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace rp
