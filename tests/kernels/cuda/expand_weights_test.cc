// Compares the expansion of quantised weights with the portable table of the CPU, bit for bit.
#include "kernels/cuda/kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/quantised/weight_kernels.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/quantised/random_weights.h"

namespace rp::cuda {
namespace {

class ExpandedWeights : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(Formats, ExpandedWeights, testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         name_of);

// Returns the bits of elements, each widened to a word.
std::vector<std::uint32_t> bits_of(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<std::uint32_t> bits(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < bits.size(); ++i) {
    std::memcpy(&bits[i], bytes.data() + i * dtype_bytes(dtype), dtype_bytes(dtype));
  }
  return bits;
}

bool is_nan_in(DType dtype, std::uint32_t bits) {
  const std::uint32_t infinity = dtype == DType::kFloat32 ? 0x7f800000 : dtype == DType::kBFloat16 ? 0x7f80 : 0x7c00;
  return (bits & (dtype == DType::kFloat32 ? 0x7fffffffU : 0x7fffU)) > infinity;
}

// Expands on the device to an address that is `shift` elements away from alignment, and expects the
// CPU's bits, or NaNs where it has NaNs.
void expect_the_bits_of_the_cpu(DType dtype, const QuantisedShape& shape, const std::vector<std::byte>& bytes,
                                std::size_t shift) {
  const std::size_t size = dtype_bytes(dtype);
  const std::int64_t count = shape.matrices * shape.num_elements();
  std::vector<std::byte> expected(static_cast<std::size_t>(count) * size);
  expand_weights(models::kPortableWeightKernels, dtype, {shape, bytes.data()}, expected.data(), 0, count);
  const DeviceArray<std::byte> weights(bytes);
  const DeviceArray<std::byte> values(std::vector<std::byte>(expected.size(), std::byte{0x77}), shift * size);
  kernel_table().expand_weights(dtype, {shape, weights.data()}, values.data(), nullptr);
  const std::vector<std::uint32_t> ours = bits_of(dtype, values.values()), theirs = bits_of(dtype, expected);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (is_nan_in(dtype, theirs[i])) {
      ASSERT_TRUE(is_nan_in(dtype, ours[i])) << text_of(shape) << ", element " << i;
    } else {
      ASSERT_EQ(ours[i], theirs[i]) << text_of(shape) << ", element " << i << ", shift " << shift;
    }
  }
}

TEST_P(ExpandedWeights, OfEveryShapeHaveTheBitsOfTheCpu) {
  for (const WeightFormat format : kWeightFormats) {
    std::vector<QuantisedShape> shapes = border_shapes(format);
    shapes.push_back({format, 2, 70, 1024});  // more packs than the emulation has threads
    for (const QuantisedShape& shape : shapes) {
      for (const std::size_t shift : {0, 1}) {
        expect_the_bits_of_the_cpu(GetParam(), shape, random_weights(shape, 1, true), shift);
      }
    }
  }
}

TEST_P(ExpandedWeights, WithEveryCodeAndByteScaleHaveTheBitsOfTheCpu) {
  for (const WeightFormat format : kWeightFormats) {
    // 256 scales of a byte. Each code occurs with each of them, at some place of its block.
    const QuantisedShape shape{format, 1, 256, format == WeightFormat::kMxfp4 ? 32 : 64};
    std::vector<std::byte> bytes = random_weights(shape, 2, true);
    const std::uint64_t scales = QuantisedLayout(shape).scales;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(shape.code_bytes()); ++i) {
      bytes[i] = static_cast<std::byte>(17 * (i % 16) + i / 16 % 7);
    }
    if (shape.scale_bytes() == 256) {
      for (std::uint64_t i = 0; i < 256; ++i) bytes[scales + i] = static_cast<std::byte>(i);
    }
    expect_the_bits_of_the_cpu(GetParam(), shape, bytes, 0);
  }
}

TEST_P(ExpandedWeights, WithoutElementsTouchNoMemory) {
  for (const WeightFormat format : kWeightFormats) {
    kernel_table().expand_weights(GetParam(), {{format, 0, 4, 64}, nullptr}, nullptr, nullptr);
    kernel_table().expand_weights(GetParam(), {{format, 4, 0, 64}, nullptr}, nullptr, nullptr);
    kernel_table().expand_weights(GetParam(), {{format, 4, 64, 0}, nullptr}, nullptr, nullptr);
  }
}

}  // namespace
}  // namespace rp::cuda
