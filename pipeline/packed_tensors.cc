#include "pipeline/packed_tensors.h"

#include "common/text.h"
#include "pipeline/description/tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

[[noreturn]] void refuse(std::size_t index, const std::string& what) {
  throw Error(ExitCode::kUsage, cat("output ", index, " of the microbatches cannot be merged: ", what,
                                    "; give a Merge, or take the outputs packed"));
}

std::int64_t dimension_of(const at::Tensor& tensor, std::size_t index, const Merge& how) {
  const std::int64_t dimension = how.dimensions.empty() ? 0 : how.dimensions.at(index);
  if (dimension < 0 || dimension >= tensor.dim()) {
    refuse(index, cat("Merge::dimensions says dimension ", dimension, ", but it has ", tensor.dim()));
  }
  return dimension;
}

at::Tensor merge_one(const std::vector<at::Tensor>& parts, std::size_t index, const Merge& how) {
  const at::Tensor& first = parts.front();
  for (const at::Tensor& part : parts) {
    if (part.defined() != first.defined()) refuse(index, "it is absent from some");
    if (part.defined() && part.dim() != first.dim())
      refuse(index, cat("it has ", first.dim(), " dimensions in one and ", part.dim(), " in another"));
  }
  if (!first.defined()) return first;
  if (first.dim() > 0) return at::cat(parts, dimension_of(first, index, how));
  if (at::isFloatingType(first.scalar_type())) return at::stack(parts).mean();
  for (const at::Tensor& part : parts) {
    if (!at::equal(part, first)) refuse(index, "it is a number that differs");
  }
  return first.clone();
}

}  // namespace

PackedTensors::State::~State() {
  if (const std::shared_ptr<Runtime> runtime = runtime_.lock()) {
    if (Coordinator* coordinator = runtime->coordinator_if_started()) coordinator->drop(block_);
  }
}

Tensors PackedTensors::State::view(int index) const {
  const std::shared_ptr<Runtime> runtime = runtime_.lock();
  if (!runtime) throw Error(ExitCode::kUsage, "packed outputs are read after the end of their session");
  if (index < 0 || index >= num_microbatches()) {
    throw Error(ExitCode::kUsage, cat("microbatch ", index, " of packed outputs; there are ", num_microbatches()));
  }
  Coordinator& coordinator = runtime->coordinator();
  if (block_.row.kind == BlockKind::kGradient) {
    coordinator.wait_all(*block_.round);
  } else {
    coordinator.wait_forward(*block_.round);
  }
  std::uint64_t bytes = 0;
  const std::byte* memory = coordinator.block(*block_.round, block_.row, index, bytes);
  const BlockHead head = read_block_head(memory, bytes);
  return tensors_over(head.views(memory + head.data_offset));
}

int PackedTensors::num_microbatches() const { return state_->num_microbatches(); }

Tensors PackedTensors::microbatch(int index) const {
  Tensors result = state_->view(index);
  for (at::Tensor& tensor : result) {
    if (tensor.defined()) tensor = tensor.clone();
  }
  return result;
}

std::vector<Tensors> microbatches_of(const PackedTensors& packed) {
  std::vector<Tensors> result;
  for (int m = 0; m < packed.num_microbatches(); ++m) result.push_back(packed.microbatch(m));
  return result;
}

std::vector<Tensors> views_of(const PackedTensors& packed) {
  std::vector<Tensors> result;
  for (int m = 0; m < packed.num_microbatches(); ++m) result.push_back(packed.state()->view(m));
  return result;
}

Tensors merge(const PackedTensors& packed, const Merge& how) {
  // A function of the user may keep its arguments, so it gets copies.
  return merge(how.function ? microbatches_of(packed) : views_of(packed), how);
}

Tensors merge(const std::vector<Tensors>& microbatches, const Merge& how) {
  if (how.function) return how.function(microbatches);
  const std::size_t num = microbatches.front().size();
  if (!how.dimensions.empty() && how.dimensions.size() != num) {
    throw Error(ExitCode::kUsage,
                cat("Merge::dimensions says how to merge ", how.dimensions.size(), " tensors, but there are ", num));
  }
  Tensors result;
  for (std::size_t i = 0; i < num; ++i) {
    std::vector<at::Tensor> parts;
    for (const Tensors& microbatch : microbatches) {
      if (microbatch.size() != num)
        refuse(i, cat("one microbatch gave ", num, " outputs, another ", microbatch.size()));
      parts.push_back(microbatch[i]);
    }
    result.push_back(merge_one(parts, i, how));
  }
  return result;
}

std::vector<Tensors> split_gradients(const Tensors& gradients, const std::vector<Tensors>& like, const Merge& how) {
  std::vector<Tensors> result(like.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    std::int64_t begin = 0;
    for (std::size_t m = 0; m < like.size(); ++m) {
      const at::Tensor& part = like[m][i];
      if (!gradient.defined() || !part.defined()) {
        result[m].emplace_back();
      } else if (part.dim() == 0) {
        result[m].push_back(gradient / static_cast<double>(like.size()));  // the gradient of a mean
      } else {
        const std::int64_t dimension = dimension_of(part, i, how);
        result[m].push_back(gradient.narrow(dimension, begin, part.size(dimension)));
        begin += part.size(dimension);
      }
    }
  }
  return result;
}

}  // namespace rp
