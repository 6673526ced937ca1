// tests/kernels/cuda/device_array.h
// Arrays in the memory of the kernels under test (a GPU's, or plain memory under the emulation),
// and element formats.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/gpu_kernels.h"
#include "tests/common/random_floats.h"

#ifndef RP_EMULATED_KERNELS
#include <cuda_runtime_api.h>
#endif

namespace rp::cuda {

// Memory of a number of bytes.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void write(const std::vector<std::byte>& from);
  [[nodiscard]] std::vector<std::byte> read() const;  // after all kernels have finished
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

#ifdef RP_EMULATED_KERNELS
inline const char* why_no_device() { return nullptr; }
inline DeviceMemory::DeviceMemory(std::size_t bytes)
    : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{256}))) {}
inline DeviceMemory::~DeviceMemory() { ::operator delete(data_, std::align_val_t{256}); }
inline void DeviceMemory::write(const std::vector<std::byte>& from) { std::memcpy(data_, from.data(), from.size()); }
inline std::vector<std::byte> DeviceMemory::read() const { return {data_, data_ + bytes_}; }
#else
inline const char* why_no_device() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  return result != cudaSuccess ? cudaGetErrorString(result) : count == 0 ? "none is there" : nullptr;
}
inline void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}
inline DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  data_ = static_cast<std::byte*>(memory);
}
inline DeviceMemory::~DeviceMemory() { (void)cudaFree(data_); }
inline void DeviceMemory::write(const std::vector<std::byte>& from) {
  check(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice));
}
inline std::vector<std::byte> DeviceMemory::read() const {
  check(cudaDeviceSynchronize());
  std::vector<std::byte> result(bytes_);
  check(cudaMemcpy(result.data(), data_, bytes_, cudaMemcpyDeviceToHost));
  return result;
}
#endif

// An array between two guards, whose bytes no kernel may change. `shift` elements before the array
// make it unaligned.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values, std::size_t shift = 0)
      : count_(values.size()), first_(kGuard + shift * sizeof(T)), memory_(first_ + count_ * sizeof(T) + kGuard) {
    std::vector<std::byte> bytes(first_ + count_ * sizeof(T) + kGuard, kPattern);
    if (count_ > 0) std::memcpy(bytes.data() + first_, values.data(), count_ * sizeof(T));
    memory_.write(bytes);
  }
  explicit DeviceArray(std::int64_t count) : DeviceArray(std::vector<T>(count)) {}

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data() + first_); }
  [[nodiscard]] std::vector<T> values() const {
    const std::vector<std::byte> bytes = memory_.read();
    std::size_t num_changed = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool is_guard = i < first_ || i >= first_ + count_ * sizeof(T);
      num_changed += is_guard && bytes[i] != kPattern ? 1 : 0;
    }
    EXPECT_EQ(num_changed, 0U) << "bytes around an array of " << count_ << " were changed";
    std::vector<T> result(count_);
    if (count_ > 0) std::memcpy(result.data(), bytes.data() + first_, count_ * sizeof(T));
    return result;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kPattern{0xa5};
  std::size_t count_;
  std::size_t first_;
  DeviceMemory memory_;
};

inline std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// Returns the value rounded to the dtype in which it is stored.
inline float rounded(DType dtype, float value) {
  if (dtype == DType::kFloat32) return value;
  if (dtype == DType::kFloat16) return static_cast<float>(static_cast<_Float16>(value));
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16_bits(value)) << 16);
}

// Returns half the distance between neighbouring values near 1.
inline float half_unit(DType dtype) {
  return dtype == DType::kFloat32 ? 6e-8F : dtype == DType::kFloat16 ? 0x1p-11F : 0x1p-8F;
}

// An array of elements of any format, written and read as fp32.
class ElementArray {
 public:
  ElementArray(DType dtype, const std::vector<float>& values, std::size_t shift = 0)
      : dtype_(dtype),
        halves_(dtype == DType::kFloat32 ? std::vector<std::uint16_t>() : halves_of(values), shift),
        floats_(dtype == DType::kFloat32 ? values : std::vector<float>(), shift) {}
  ElementArray(DType dtype, std::int64_t count, std::size_t shift = 0)
      : ElementArray(dtype, std::vector<float>(count), shift) {}

  [[nodiscard]] void* data() const {
    return dtype_ == DType::kFloat32 ? static_cast<void*>(floats_.data()) : halves_.data();
  }
  [[nodiscard]] std::vector<float> values() const {
    if (dtype_ == DType::kFloat32) return floats_.values();
    std::vector<float> result;
    for (const std::uint16_t bits : halves_.values()) {
      result.push_back(dtype_ == DType::kFloat16 ? static_cast<float>(std::bit_cast<_Float16>(bits))
                                                 : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
    }
    return result;
  }

 private:
  [[nodiscard]] std::vector<std::uint16_t> halves_of(const std::vector<float>& values) const {
    std::vector<std::uint16_t> result;
    for (const float value : values) {
      result.push_back(dtype_ == DType::kFloat16 ? std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))
                                                 : bf16_bits(value));
    }
    return result;
  }

  DType dtype_;
  DeviceArray<std::uint16_t> halves_;
  DeviceArray<float> floats_;
};

// Returns normally distributed values that the format can represent. Another `seed` returns other
// values.
inline std::vector<float> random_values(DType dtype, std::int64_t count, unsigned seed, float scale = 1) {
  std::mt19937 generator(seed);
  NormalFloats normal(0, scale);
  std::vector<float> result(count);
  for (float& value : result) value = rounded(dtype, normal(generator));
  return result;
}

// Expects |actual - expected| <= units * half_unit * (|expected| + scale) for each element.
inline void expect_near(DType dtype, const std::vector<float>& actual, const std::vector<float>& expected, float units,
                        float scale, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float tolerance = units * half_unit(dtype) * (std::abs(expected[i]) + scale);
    ASSERT_LE(std::abs(actual[i] - expected[i]), tolerance)
        << what << ", element " << i << ": " << actual[i] << " and not " << expected[i];
  }
}

// The base class of the tests. It skips them if there is no GPU.
class KernelTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const char* why = why_no_device()) GTEST_SKIP() << "no CUDA device: " << why;
  }
};

inline const char* element_name(DType dtype) {
  return dtype == DType::kBFloat16 ? "Bf16" : dtype == DType::kFloat16 ? "Fp16" : "Fp32";
}
inline std::string name_of(const testing::TestParamInfo<DType>& info) { return element_name(info.param); }

}  // namespace rp::cuda

namespace rp::models {
inline void PrintTo(DType dtype, std::ostream* out) { *out << cuda::element_name(dtype); }
}  // namespace rp::models
