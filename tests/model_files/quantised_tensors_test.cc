#include "model_files/weights/quantised_tensors.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/quantised_files.h"

namespace rp {
namespace {

using Floats = std::vector<float>;

const CheckpointTensor kExpert{.name = "experts.2.up_proj.weight",
                               .shape = {2, 130},
                               .parts = {{.parameter = "experts.up_proj.weight", .expert = 2}},
                               .format = WeightFormat::kFp8Blocks};

FileTensor bytes_of(DType dtype, std::vector<std::int64_t> shape, const void* bytes, std::size_t size) {
  return {dtype, std::move(shape), std::string(static_cast<const char*>(bytes), size)};
}

std::string counted(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i % 100);
  return bytes;
}

FileTensors expert_files() {
  const std::uint16_t scales[] = {0x3F80, 0xC040};  // 1 and -3 in bf16
  return {{kExpert.name, {DType::kFloat8E4m3, {2, 130}, counted(260)}},
          {kExpert.name + "_scale_inv", bytes_of(DType::kBFloat16, {1, 2}, scales, sizeof(scales))}};
}

const CheckpointTensor kDouble{
    .name = "w.weight", .shape = {3, 65}, .parts = {{.parameter = "w.weight"}}, .format = WeightFormat::kNf4Double};

FileTensors double_files() {
  FileTensors files;
  for (const StoredTensor& stored : stored_tensors(kDouble)) {
    if (stored.name.ends_with(kNf4State)) continue;
    const DType dtype = stored.dtypes.front();
    files[stored.name] = {dtype, stored.shape, counted(TensorDeclaration{stored.name, dtype, stored.shape}.bytes())};
  }
  const float nested = 1.5;
  files["w.weight.nested_absmax"] = bytes_of(DType::kFloat32, {1}, &nested, sizeof(nested));
  files["w.weight.quant_map"] = tensor_of(kNf4Codes.at);
  files["w.weight.nested_quant_map"] = tensor_of(kNestedMap.at);
  files["w.weight.quant_state.bitsandbytes__nf4"] = tensor_of(nf4_state({3, 65}).dump());
  return files;
}

// Returns the parameter, in which all bytes that are not read are 0xEE.
std::vector<std::byte> read(const FileTensors& files, const CheckpointTensor& tensor, std::int64_t num_matrices) {
  const TempDirectory directory;
  write_files(directory.file("model.safetensors"), files);
  QuantisedShape shape = quantised_shape(tensor);
  shape.matrices = num_matrices;
  std::vector<std::byte> bytes(QuantisedLayout(shape).num_bytes, std::byte{0xEE});
  read_quantised_part(WeightFiles::open(directory.path()), tensor, tensor.parts.front(), shape, bytes.data());
  return bytes;
}

Floats floats_at(const std::vector<std::byte>& bytes, std::uint64_t place, std::size_t count) {
  Floats floats(count);
  std::memcpy(floats.data(), bytes.data() + place, count * sizeof(float));
  return floats;
}

TEST(QuantisedTensors, OfAnExpertAreItsMatrixOfTheParameter) {
  const std::vector<std::byte> bytes = read(expert_files(), kExpert, 4);
  const QuantisedLayout layout({.format = WeightFormat::kFp8Blocks, .matrices = 4, .rows = 2, .columns = 130});
  const std::string codes = counted(260);
  EXPECT_EQ(std::memcmp(bytes.data() + 2 * 260, codes.data(), 260), 0);
  EXPECT_EQ(floats_at(bytes, layout.scales + 2 * 8, 2), (Floats{1, -3})) << "widened from bf16";
  const auto is_untouched = [&](std::uint64_t begin, std::uint64_t end) {
    return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                       bytes.begin() + static_cast<std::ptrdiff_t>(end),
                       [](std::byte byte) { return byte == std::byte{0xEE}; });
  };
  EXPECT_TRUE(is_untouched(0, 2 * 260) && is_untouched(3 * 260, layout.scales + 2 * 8) &&
              is_untouched(layout.scales + 3 * 8, bytes.size()));
}

TEST(QuantisedTensors, OfDoubleQuantisationHaveFourParts) {
  const std::vector<std::byte> bytes = read(double_files(), kDouble, 1);
  const QuantisedLayout layout({.format = WeightFormat::kNf4Double, .rows = 3, .columns = 65});
  const std::string codes = counted(98), scales = counted(4);
  EXPECT_EQ(std::memcmp(bytes.data(), codes.data(), codes.size()), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + layout.scales, scales.data(), scales.size()), 0);
  EXPECT_EQ(floats_at(bytes, layout.nested_scales, 1), Floats{1.5});
  EXPECT_EQ(floats_at(bytes, layout.offsets, 1), Floats{0.125});
}

TEST(QuantisedTensors, WithoutAFiniteValueAreRefused) {
  FileTensors files = expert_files();
  const std::string scale = kExpert.name + "_scale_inv";
  const std::uint16_t infinite[] = {0x3F80, 0x7F80};
  files[scale] = bytes_of(DType::kBFloat16, {1, 2}, infinite, sizeof(infinite));
  expect_refusal({"model.safetensors", "'" + scale + "'", "scale of inf"}, [&] { (void)read(files, kExpert, 4); });
  const Floats nan = {1, std::numeric_limits<float>::quiet_NaN()};
  files[scale] = bytes_of(DType::kFloat32, {1, 2}, nan.data(), 8);
  expect_refusal({"'" + scale + "'", "scale of nan"}, [&] { (void)read(files, kExpert, 4); });
  files = expert_files();
  files[kExpert.name].bytes[7] = static_cast<char>(0xFF);
  expect_refusal({"'" + kExpert.name + "'", "1 NaN among its 260"}, [&] { (void)read(files, kExpert, 4); });
  files = double_files();
  files["w.weight.nested_absmax"] = bytes_of(DType::kFloat32, {1}, nan.data() + 1, 4);
  expect_refusal({"'w.weight.nested_absmax'", "scale of nan"}, [&] { (void)read(files, kDouble, 1); });
}

}  // namespace
}  // namespace rp
