#include "models/tensor_parts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "common/check.h"
#include "common/text.h"
#include "model_files/weights/quantised_tensors.h"
#include "models/layers/quantised_weights.h"
#include "models/layers/scalar_type.h"
#include "roundpipe/error.h"

namespace rp::models {

namespace {

// The number of weights that are converted at a time.
constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;

// The rows and columns of a tensor, or of each expert's share of a tensor of all experts, as those of
// parameters.
struct Matrix {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  [[nodiscard]] std::int64_t num_elements() const { return rows * columns; }
};

Matrix matrix_of(const CheckpointTensor& tensor) {
  const auto begin = tensor.shape.begin() + (tensor.is_of_all_experts ? 1 : 0);
  if (begin == tensor.shape.end()) return {};
  if (tensor.is_transposed) return {.rows = *(begin + 1), .columns = *begin};
  const auto columns = std::accumulate(begin + 1, tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
  return {.rows = *begin * tensor.rows_in_row, .columns = columns / tensor.rows_in_row};
}

// Returns whether the file stores the values of a part in the order of its parameter, in one piece.
bool is_one_piece(const CheckpointTensor& tensor, const TensorPart& part) {
  return !tensor.is_transposed && part.row_step == 1;
}

// Reads elements, starting with the tensor's element `first`.
template <typename Files>
void read_elements(const Files& files, const std::string& name, std::int64_t first, const at::Tensor& value) {
  const DType stored = files.tensor(name).dtype;
  const auto element_size = static_cast<std::int64_t>(dtype_bytes(stored));
  const at::Tensor elements = value.view({-1});
  const at::Tensor buffer = at::empty({std::min(kPieceElements, elements.numel())}, weight_type(stored, name));
  for (std::int64_t done = 0; done < elements.numel(); done += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, elements.numel() - done);
    files.read(name, buffer.mutable_data_ptr(), static_cast<std::uint64_t>(count * element_size),
               static_cast<std::uint64_t>((first + done) * element_size));
    elements.narrow(0, done, count).copy_(buffer.narrow(0, 0, count));
  }
}

// Reads the rows of a part of which each row of the tensor has one. The other parts' rows are not
// read: the file may be larger than what the system can keep in memory until it is read again.
template <typename Files>
void read_rows_in_turn(const Files& files, const CheckpointTensor& tensor, const TensorPart& part,
                       const at::Tensor& rows) {
  const at::ScalarType stored = weight_type(files.tensor(tensor.name).dtype, tensor.name);
  const std::int64_t columns = rows.size(1),
                     at_once = std::clamp<std::int64_t>(kPieceElements / columns, 1, rows.size(0));
  const at::Tensor piece = at::empty({at_once, columns}, stored);
  const auto row_bytes = static_cast<std::uint64_t>(columns * piece.element_size());
  auto* const bytes = static_cast<std::byte*>(piece.mutable_data_ptr());
  for (std::int64_t first = 0; first < rows.size(0); first += at_once) {
    const std::int64_t count = std::min(at_once, rows.size(0) - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<std::uint64_t>((first + i) * tensor.rows_in_row + part.first_row);
      files.read(tensor.name, bytes + static_cast<std::uint64_t>(i) * row_bytes, row_bytes, row * row_bytes);
    }
    rows.narrow(0, first, count).copy_(piece.narrow(0, 0, count));
  }
}

// Reads rows of a matrix that is transposed or whose rows take turns. Both steps access memory in its
// order, because LibTorch transposes matrices in tiles.
template <typename Files>
void read_rows(const Files& files, const CheckpointTensor& tensor, const TensorPart& part, std::int64_t first,
               const at::Tensor& rows) {
  const Matrix matrix = matrix_of(tensor);
  const std::int64_t dimension = tensor.is_transposed ? 1 : 0;
  const auto shape =
      tensor.is_transposed ? std::vector{matrix.columns, matrix.rows} : std::vector{matrix.rows, matrix.columns};
  const at::Tensor all = at::empty(shape, weight_type(files.tensor(tensor.name).dtype, tensor.name));
  read_elements(files, tensor.name, first, all);
  const std::int64_t end = part.first_row + (rows.size(0) - 1) * part.row_step + 1;
  const at::Tensor ours = all.slice(dimension, part.first_row, end, part.row_step).to(rows.scalar_type()).contiguous();
  rows.copy_(tensor.is_transposed ? ours.t() : ours);
}

// Reads and expands a matrix of a quantised tensor, one that is not kept quantised in memory; of a
// tensor that is not of experts, the rows of the part.
void read_expanded(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
                   std::int64_t expert, const at::Tensor& rows) {
  // Only a tensor of the whole model has several parts that are not of experts.
  const bool is_slice = !tensor.is_of_all_experts && tensor.parts.size() > 1;
  const QuantisedShape shape{
      .format = *tensor.format, .rows = is_slice ? tensor.shape.front() : rows.size(0), .columns = rows.size(1)};
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(QuantisedLayout(shape).num_bytes)}, at::kByte);
  read_quantised_matrix(weights, tensor, part, expert,
                        {.shape = shape, .bytes = static_cast<std::byte*>(bytes.mutable_data_ptr())});
  const at::Tensor values = expanded_matrix(bytes, shape, 0, rows.scalar_type());
  rows.copy_(is_slice ? values.narrow(0, part.first_row, rows.size(0)) : values);
}

// Calls read(number, rows) for the matrix, or the matrix of each expert, of which `tensor` has values.
// `rows` are those of the parameter `value`.
template <typename Read>
void for_each_matrix(const CheckpointTensor& tensor, const TensorPart& part, const at::Tensor& value,
                     const Read& read) {
  const std::int64_t columns = matrix_of(tensor).columns;
  const std::int64_t num_shares = tensor.is_of_all_experts ? tensor.shape.front() : 1;
  for (std::int64_t i = 0; i < num_shares; ++i) {
    const at::Tensor share = tensor.is_of_all_experts ? value[i] : part.expert >= 0 ? value[part.expert] : value;
    read(i, share.view({-1, columns}));
  }
}

template <typename Files>
void read_part_of(const Files& files, const CheckpointTensor& tensor, const TensorPart& part, const at::Tensor& value) {
  const Matrix matrix = matrix_of(tensor);
  for_each_matrix(tensor, part, value, [&](std::int64_t number, const at::Tensor& rows) {
    const std::int64_t first = number * matrix.num_elements();
    if (is_one_piece(tensor, part)) {
      read_elements(files, tensor.name, first + part.first_row * matrix.columns, rows);
    } else if (tensor.rows_in_row > 1) {
      read_rows_in_turn(files, tensor, part, rows);
    } else {
      read_rows(files, tensor, part, first, rows);
    }
  });
}

void write_elements(SafetensorsWriter& writer, const std::string& name, const at::Tensor& value, at::ScalarType dtype) {
  const at::Tensor elements = value.detach().contiguous().view({-1});
  for (std::int64_t first = 0; first < elements.numel(); first += kPieceElements) {
    const at::Tensor piece =
        elements.narrow(0, first, std::min(kPieceElements, elements.numel() - first)).to(dtype).contiguous();
    writer.write(name, piece.const_data_ptr(), piece.nbytes());
  }
}

// Writes a tensor whose parts take turns in each of its rows. Few rows at a time are put together,
// because the tensor may be the largest of the model.
void write_rows_in_turn(SafetensorsWriter& writer, const CheckpointTensor& tensor, at::ScalarType dtype,
                        const PartSource& source) {
  RP_ASSERT(std::ssize(tensor.parts) == tensor.rows_in_row);
  const std::int64_t columns = matrix_of(tensor).columns;
  std::vector<at::Tensor> values;
  for (const TensorPart& part : tensor.parts) values.push_back(source(part, part.expert).detach());
  const std::int64_t at_once = std::max<std::int64_t>(kPieceElements / (columns * tensor.rows_in_row), 1);
  for (std::int64_t first = 0; first < tensor.shape.front(); first += at_once) {
    const std::int64_t count = std::min(at_once, tensor.shape.front() - first);
    const at::Tensor rows = at::empty({count, tensor.rows_in_row, columns}, dtype);
    for (std::size_t i = 0; i < values.size(); ++i)
      rows.select(1, tensor.parts[i].first_row).copy_(values[i].narrow(0, first, count));
    writer.write(tensor.name, rows.const_data_ptr(), rows.nbytes());
  }
}

}  // namespace

at::ScalarType weight_type(DType dtype, const std::string& name) {
  if (is_working_dtype(dtype) || dtype == DType::kFloat64) return scalar_type_of(dtype);
  throw Error(ExitCode::kBadInput, cat("tensor '", name, "' is of type ", dtype_name(dtype),
                                       ", which is no weight: F32, F16 and BF16 are read"));
}

void read_part(const WeightFiles& weights, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value) {
  if (!tensor.format) return read_part_of(weights, tensor, part, value);
  for_each_matrix(tensor, part, value, [&](std::int64_t number, const at::Tensor& rows) {
    read_expanded(weights, tensor, part, number, rows);
  });
}

void read_part(const SafetensorsFile& file, const CheckpointTensor& tensor, const TensorPart& part,
               const at::Tensor& value) {
  read_part_of(file, tensor, part, value);
}

at::Tensor assemble(const CheckpointTensor& tensor, std::int64_t expert, at::ScalarType dtype,
                    const PartSource& source) {
  const std::vector<std::int64_t> shape(tensor.shape.begin() + (tensor.is_of_all_experts ? 1 : 0), tensor.shape.end());
  const Matrix matrix = matrix_of(tensor);
  const at::Tensor all = at::empty(shape, dtype);
  const at::Tensor table = tensor.is_transposed ? all : all.view({matrix.rows, matrix.columns});
  const std::int64_t dimension = tensor.is_transposed ? 1 : 0;
  for (const TensorPart& part : tensor.parts) {
    const at::Tensor rows =
        source(part, tensor.is_of_all_experts ? expert : part.expert).detach().reshape({-1, matrix.columns}).to(dtype);
    const std::int64_t end = part.first_row + (rows.size(0) - 1) * part.row_step + 1;
    // The matrix is transposed before it is copied to its place, so that both steps read and write
    // in the order of memory.
    table.slice(dimension, part.first_row, end, part.row_step)
        .copy_(tensor.is_transposed ? rows.t().contiguous() : rows);
  }
  return all;
}

void write_tensor(SafetensorsWriter& writer, const CheckpointTensor& tensor, at::ScalarType dtype,
                  const PartSource& source) {
  if (tensor.rows_in_row > 1) return write_rows_in_turn(writer, tensor, dtype, source);
  const bool is_in_order =
      std::ranges::all_of(tensor.parts, [&](const TensorPart& part) { return is_one_piece(tensor, part); });
  const std::int64_t num_shares = tensor.is_of_all_experts ? tensor.shape.front() : 1;
  for (std::int64_t i = 0; i < num_shares; ++i) {
    if (!is_in_order) {
      write_elements(writer, tensor.name, assemble(tensor, i, dtype, source), dtype);
      continue;
    }
    std::int64_t elements = 0;
    for (const TensorPart& part : tensor.parts) {
      const at::Tensor value = source(part, tensor.is_of_all_experts ? i : part.expert);
      RP_ASSERT(elements == part.first_row * matrix_of(tensor).columns);
      write_elements(writer, tensor.name, value, dtype);
      elements += value.numel();
    }
    RP_ASSERT(elements == matrix_of(tensor).num_elements());
  }
}

}  // namespace rp::models
