#include "pipeline/batch_split.h"

#include "common/text.h"
#include "pipeline/description/tensors.h"
#include "pipeline/description/value_structure.h"
#include "pipeline/packed_tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::kUsage, what); }

void check_devices(const Tensors& tensors, const char* what) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].is_cpu()) continue;
    refuse(cat(what, " ", i, " is on device ", tensors[i].device().str(),
               "; give all tensors on the CPU, workers take them from there"));
  }
}

std::vector<Tensors> cut_by_function(const Tensors& tensors, const Split& split, int num_microbatches,
                                     const char* what) {
  std::vector<Tensors> result = split.function(tensors, num_microbatches);
  if (result.size() != static_cast<std::size_t>(num_microbatches)) {
    refuse(
        cat("Split::function gave ", result.size(), " lists of ", what, "s for ", num_microbatches, " microbatches"));
  }
  for (const Tensors& part : result) {
    if (part.size() != result.front().size()) {
      refuse(cat("Split::function gave lists of different lengths: ", result.front().size(), " and ", part.size(), " ",
                 what, "s"));
    }
  }
  return result;
}

// `size` is the length that all tensors cut by default must share, or -1 while it is unknown.
std::vector<Tensors> cut(const Tensors& tensors, const Split& split, int num_microbatches, const char* what,
                         std::int64_t& size) {
  check_devices(tensors, what);
  if (split.function) return cut_by_function(tensors, split, num_microbatches, what);
  std::vector<Tensors> result(num_microbatches);
  const std::vector<int> dimensions = split_dimensions(tensors, split, what);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const int dimension = dimensions[i];
    if (dimension == Split::kWhole) {
      for (Tensors& part : result) part.push_back(tensors[i]);
      continue;
    }
    const std::int64_t length = tensors[i].size(dimension);
    if (split.dimensions.empty() && size >= 0 && length != size) {
      refuse(cat("inputs and labels of a round must have the same size in dimension 0, but one has ", size,
                 " and another ", length));
    }
    size = std::max(size, length);
    if (length < num_microbatches) {
      refuse(cat("a batch of ", length, " cannot be split into ", num_microbatches,
                 " microbatches; use a larger batch or fewer microbatches"));
    }
    const std::vector<at::Tensor> parts = tensors[i].detach().tensor_split(num_microbatches, dimension);
    for (std::size_t m = 0; m < parts.size(); ++m) result[m].push_back(parts[m]);
  }
  return result;
}

std::vector<BlockOfRound> imports_of(const Batch& batch, int num_microbatches, const char* what) {
  if (batch.packed.size() > kMaxImports) {
    refuse(cat(batch.packed.size(), " packed lists of ", what, "s; at most ", kMaxImports, " are possible"));
  }
  std::vector<BlockOfRound> result;
  for (const PackedTensors& packed : batch.packed) {
    if (packed.num_microbatches() != num_microbatches) {
      refuse(cat("a packed list of ", what, "s has ", packed.num_microbatches(), " microbatches, but the round has ",
                 num_microbatches, "; both calls must have as many"));
    }
    result.push_back(packed.state()->block());
  }
  return result;
}

}  // namespace

std::vector<int> split_dimensions(const Tensors& tensors, const Split& split, const char* what) {
  if (!split.dimensions.empty() && split.dimensions.size() != tensors.size()) {
    refuse(cat("Split::dimensions says how to cut ", split.dimensions.size(), " tensors, but there are ",
               tensors.size(), " ", what, "s"));
  }
  std::vector<int> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t rank = tensors[i].defined() ? tensors[i].dim() : 0;
    const int by_default = rank > 0 ? 0 : Split::kWhole;
    const int dimension = split.dimensions.empty() || !tensors[i].defined() ? by_default : split.dimensions[i];
    if (dimension < Split::kWhole || dimension >= rank) {
      refuse(cat("Split::dimensions cuts ", what, " ", i, " along dimension ", dimension, ", but it has ", rank,
                 " dimensions; Split::kWhole (-1) gives it to all microbatches"));
    }
    result.push_back(dimension);
  }
  return result;
}

BatchSplit::BatchSplit(const Batch& inputs, const Split& split_inputs, const Batch& arguments,
                       const Split& split_arguments, int num_microbatches) {
  std::int64_t size = -1;
  blocks_.inputs = views(cut(inputs.tensors, split_inputs, num_microbatches, "input", size));
  if (inputs.nested)
    refuse("the inputs of a call are a list of tensors; nested values are for the arguments of a loss");
  if (arguments.nested && !(arguments.tensors.empty() && arguments.packed.empty())) {
    refuse("the arguments of a call are one nested value, or a list of tensors with packed lists behind it, not both");
  }
  blocks_.arguments = views(cut(arguments.nested ? tensors_of(*arguments.nested) : arguments.tensors, split_arguments,
                                num_microbatches, "argument", size));
  if (arguments.nested) set_structure(*arguments.nested);
  blocks_.input_imports = imports_of(inputs, num_microbatches, "input");
  blocks_.argument_imports = imports_of(arguments, num_microbatches, "argument");
  if (size < 0 && inputs.packed.empty() && !split_inputs.function) {
    refuse(
        cat("a batch of 0 cannot be split into ", num_microbatches, " microbatches; no input has a dimension to cut"));
  }
}

void BatchSplit::set_structure(const Value& nested) {
  const std::vector<std::byte> structure = structure_of(nested);
  const std::size_t num_tensors = tensors_of(nested).size();
  for (BlockContents& block : blocks_.arguments) {
    if (block.tensors.size() != num_tensors) {
      refuse(cat("Split::function gave ", block.tensors.size(), " arguments, but the nested arguments have ",
                 num_tensors, " tensors"));
    }
    block.structure = structure;
  }
}

std::vector<BlockContents> BatchSplit::views(std::vector<Tensors> microbatches) {
  std::vector<BlockContents> blocks;
  storage_.push_back(std::move(microbatches));
  for (Tensors& tensors : storage_.back()) blocks.push_back({.tensors = views_of(tensors)});
  return blocks;
}

}  // namespace rp
