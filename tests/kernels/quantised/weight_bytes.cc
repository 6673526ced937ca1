// Calls the CPU kernels for quantised weights on files of raw bytes, for tests that compare them with other programs.
//
//   weight_bytes expand FORMAT MATRICES ROWS COLUMNS DTYPE INPUT OUTPUT
//   weight_bytes quantise FORMAT MATRICES ROWS COLUMNS DTYPE INPUT OUTPUT
//   weight_bytes nested-map OUTPUT
//
// FORMAT is nf4, nf4-double, mxfp4, fp8-blocks or fp8-tensor, DTYPE is F32, BF16 or F16. One file has the elements, the
// other one the bytes in QuantisedLayout. Exit code 64 for wrong arguments, 65 if an element is not finite.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/quantised/weight_kernels.h"

namespace rp {
namespace {

constexpr int kUsage = 64, kNotFinite = 65;

std::vector<std::byte> read_file(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  std::vector<std::byte> result(bytes.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

int write_file(const std::string& name, const void* data, std::size_t bytes) {
  std::ofstream file(name, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  return file.good() ? 0 : 1;
}

int expand(const QuantisedShape& shape, DType dtype, const std::string& input, const std::string& output) {
  const std::vector<std::byte> bytes = read_file(input);
  if (bytes.size() != QuantisedLayout(shape).num_bytes) return kUsage;
  const std::int64_t count = shape.matrices * shape.num_elements();
  std::vector<std::byte> values(static_cast<std::size_t>(count) * dtype_bytes(dtype));
  expand_weights(models::weight_kernels(), dtype, {shape, bytes.data()}, values.data(), 0, count);
  return write_file(output, values.data(), values.size());
}

int quantise(const QuantisedShape& shape, DType dtype, const std::string& input, const std::string& output) {
  const std::vector<std::byte> values = read_file(input);
  const auto matrix_bytes = static_cast<std::size_t>(shape.num_elements()) * dtype_bytes(dtype);
  if (values.size() != static_cast<std::size_t>(shape.matrices) * matrix_bytes) return kUsage;
  std::vector<std::byte> bytes(QuantisedLayout(shape).num_bytes);
  for (std::int64_t matrix = 0; matrix < shape.matrices; ++matrix) {
    const std::byte* first = values.data() + static_cast<std::size_t>(matrix) * matrix_bytes;
    if (!quantise_weights(models::weight_kernels(), dtype, first, shape, matrix, bytes.data())) return kNotFinite;
  }
  return write_file(output, bytes.data(), bytes.size());
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "nested-map") return write_file(words[1], kNestedMap.at, sizeof kNestedMap.at);
  static const std::map<std::string, WeightFormat> kFormats = {{"nf4", WeightFormat::kNf4},
                                                               {"nf4-double", WeightFormat::kNf4Double},
                                                               {"mxfp4", WeightFormat::kMxfp4},
                                                               {"fp8-blocks", WeightFormat::kFp8Blocks},
                                                               {"fp8-tensor", WeightFormat::kFp8Tensor}};
  if (words.size() != 8 || !kFormats.contains(words[1])) return kUsage;
  const std::optional<DType> dtype = dtype_from_name(words[5]);
  if (!dtype || !is_working_dtype(*dtype)) return kUsage;
  const QuantisedShape shape{kFormats.at(words[1]), std::stoll(words[2]), std::stoll(words[3]), std::stoll(words[4])};
  if (words[0] == "expand") return expand(shape, *dtype, words[6], words[7]);
  return words[0] == "quantise" ? quantise(shape, *dtype, words[6], words[7]) : kUsage;
}

}  // namespace
}  // namespace rp

int main(int argc, char** argv) { return rp::run({argv + 1, argv + argc}); }
