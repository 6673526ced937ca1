// common/dtype.h
// Lists the number formats of tensors in shared memory, in files, in the optimizer's passes and in
// kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

// A row contains everything that this header needs about a format: its name in the code, its name
// in safetensors files, and the bytes of one element. The position of a row is the format's number
// in shared memory (docs/formats/blocks.md), so new rows must be added at the end.
#define RP_DTYPES(ROW)      \
  ROW(kFloat32, "F32", 4)   \
  ROW(kBFloat16, "BF16", 2) \
  ROW(kFloat16, "F16", 2)   \
  ROW(kFloat64, "F64", 8)   \
  ROW(kInt64, "I64", 8)     \
  ROW(kInt32, "I32", 4)     \
  ROW(kInt16, "I16", 2)     \
  ROW(kInt8, "I8", 1)       \
  ROW(kUInt8, "U8", 1)      \
  ROW(kBool, "BOOL", 1)     \
  ROW(kFloat8E4m3, "F8_E4M3", 1)

namespace rp {

enum class DType : std::uint32_t {
#define RP_ROW(dtype, name, bytes) dtype,
  RP_DTYPES(RP_ROW)
#undef RP_ROW
};

namespace internal {

struct DTypeRow {
  std::string_view name;
  std::uint64_t bytes = 0;
};
inline constexpr DTypeRow kDTypeRows[] = {
#define RP_ROW(dtype, name, bytes) {name, bytes},
    RP_DTYPES(RP_ROW)
#undef RP_ROW
};

}  // namespace internal

inline constexpr std::size_t kNumDTypes = std::size(internal::kDTypeRows);

// Returns the number of bytes of one element.
[[nodiscard]] constexpr std::uint64_t dtype_bytes(DType dtype) {
  return internal::kDTypeRows[static_cast<std::size_t>(dtype)].bytes;
}

// Returns the name in safetensors files, for example "BF16".
[[nodiscard]] constexpr std::string_view dtype_name(DType dtype) {
  return internal::kDTypeRows[static_cast<std::size_t>(dtype)].name;
}

// Returns the dtype with this name, or nothing for formats that this project does not read (other
// 8-bit floats, packed 4-bit, …).
[[nodiscard]] constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNumDTypes; ++i) {
    if (internal::kDTypeRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Returns whether this is one of the three formats in which workers compute: those of weights,
// activations and gradients. The optimizer's passes and the kernels accept no others.
[[nodiscard]] constexpr bool is_working_dtype(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Returns whether tensors of layers and calls may have this format. 8-bit floats occur in weight
// files only.
[[nodiscard]] constexpr bool is_layer_dtype(DType dtype) { return dtype != DType::kFloat8E4m3; }

}  // namespace rp

#undef RP_DTYPES
