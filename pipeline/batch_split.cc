#include "pipeline/batch_split.h"

#include "common/text.h"
#include "pipeline/tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// The size of dimension 0 that all tensors share.
std::int64_t batch_size(const Tensors& inputs, const Tensors& arguments) {
  std::int64_t size = -1;
  for (const Tensors* tensors : {&inputs, &arguments}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined() || tensor.dim() == 0) continue;
      if (size >= 0 && tensor.size(0) != size) {
        throw Error(ExitCode::kUsage, cat("inputs and labels of a round must have the same size in dimension 0, but one "
                                          "has ", size, " and another ", tensor.size(0)));
      }
      size = tensor.size(0);
    }
  }
  return size;
}

}  // namespace

BatchSplit::BatchSplit(const Tensors& inputs, const Tensors& arguments, int num_microbatches) {
  const std::int64_t size = batch_size(inputs, arguments);
  if (size < num_microbatches) {
    throw Error(ExitCode::kUsage, cat("a batch of ", std::max<std::int64_t>(size, 0), " cannot be split into ",
                                      num_microbatches, " microbatches; use a larger batch or fewer microbatches"));
  }
  std::int64_t first = 0;
  storage_.reserve(2 * static_cast<std::size_t>(num_microbatches));
  for (int m = 0; m < num_microbatches; ++m) {
    const std::int64_t length = size / num_microbatches + (m < size % num_microbatches ? 1 : 0);
    const auto part = [&](const Tensors& tensors) {
      Tensors& parts = storage_.emplace_back();
      for (const at::Tensor& tensor : tensors) {
        const bool is_split = tensor.defined() && tensor.dim() > 0;
        parts.push_back(is_split ? tensor.detach().narrow(0, first, length) : tensor);
      }
      return views_of(parts);
    };
    blocks_.inputs.push_back({.tensors = part(inputs)});
    blocks_.arguments.push_back({.tensors = part(arguments)});
    first += length;
  }
}

}  // namespace rp
