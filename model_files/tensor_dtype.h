// model_files/tensor_dtype.h
// The number formats that tensors in files have.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace rp {

enum class TensorDType : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of one element.
[[nodiscard]] std::uint64_t element_bytes(TensorDType dtype);

// The name in safetensors files, as "BF16".
[[nodiscard]] std::string_view dtype_name(TensorDType dtype);

// The dtype of that name; absent for the formats that we do not read (8-bit floats, packed 4-bit, …).
[[nodiscard]] std::optional<TensorDType> dtype_from_name(std::string_view name);

}  // namespace rp
