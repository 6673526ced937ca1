#include "model_files/tensor_dtype.h"

#include <array>

namespace rp {
namespace {

struct Row {
  TensorDType dtype;
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array<Row, 10> kTable = {{
    {TensorDType::kF64, "F64", 8},
    {TensorDType::kF32, "F32", 4},
    {TensorDType::kF16, "F16", 2},
    {TensorDType::kBF16, "BF16", 2},
    {TensorDType::kI64, "I64", 8},
    {TensorDType::kI32, "I32", 4},
    {TensorDType::kI16, "I16", 2},
    {TensorDType::kI8, "I8", 1},
    {TensorDType::kU8, "U8", 1},
    {TensorDType::kBool, "BOOL", 1},
}};

constexpr bool is_in_enum_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(is_in_enum_order());

}  // namespace

std::uint64_t element_bytes(TensorDType dtype) { return kTable[static_cast<std::size_t>(dtype)].bytes; }

std::string_view dtype_name(TensorDType dtype) { return kTable[static_cast<std::size_t>(dtype)].name; }

std::optional<TensorDType> dtype_from_name(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace rp
