// Places the parameters of a program's pipelines in the arenas: Catalogue::lay_out(), and Catalogue::share_of(), what a
// pipeline has of the places.
#include "hoststore/catalogue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Parameters start on cache lines in every dtype in which they are stored: a line holds 16 elements
// of fp32, or 32 elements of 16 bits.
constexpr std::uint64_t kElementAlignment = 32;

template <std::size_t N>
void copy_name(std::array<char, N>& to, const std::string& name) {
  if (name.size() >= N) {
    throw Error(ExitCode::kUsage, cat("the name '", name, "' is too long: at most ", N - 1, " characters"));
  }
  std::memcpy(to.data(), name.c_str(), name.size() + 1);
}

std::uint64_t take(std::uint64_t& end, std::uint64_t bytes) {
  const std::uint64_t offset = end;
  end = align_up(end + bytes, kGroupAlignment);
  return offset;
}

TensorDesc describe(const ParameterRequest& parameter) {
  if (parameter.shape.size() > kMaxRank) {
    throw Error(ExitCode::kUsage, cat("parameter ", parameter.name, " has ", parameter.shape.size(),
                                      " dimensions; at most ", kMaxRank, " are possible"));
  }
  TensorDesc desc;
  desc.dtype = parameter.dtype;
  desc.rank = static_cast<std::int32_t>(parameter.shape.size());
  std::copy(parameter.shape.begin(), parameter.shape.end(), desc.shape.begin());
  return desc;
}

// Collects weight groups, uses and tensors from the layers. Catalogue::lay_out() then assigns the
// offsets.
class CatalogueBuilder {
 public:
  void add_pipeline(const PipelineRequest& pipeline) {
    PipelineRecord record{};
    copy_name(record.name, pipeline.name);
    record.seed = pipeline.seed;
    record.first_layer = CatalogueLayer(layers.size());
    record.num_layers = static_cast<std::uint32_t>(pipeline.layers.size());
    record.first_group = GroupId(weight_groups.size());
    num_copies_ = pipeline.num_copies;
    tied_weight_groups_.clear();
    first_of_tied_.clear();
    for (const LayerRequest& layer : pipeline.layers) add_layer(layer);
    record.num_groups = GroupId(weight_groups.size()) - record.first_group;
    pipelines.push_back(record);
  }

  // Fills `uses` with the distinct (weight group, layer) pairs, sorted, and stores each tensor's
  // index among them.
  void make_uses() {
    std::vector<GroupInLayer> pairs = group_of_tensor_;
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    for (const auto& [group, layer] : pairs) uses.push_back({.group = group, .layer = layer});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto use = std::lower_bound(pairs.begin(), pairs.end(), group_of_tensor_[i]);
      tensors[i].use = UseId(use - pairs.begin());
    }
  }

  std::vector<PipelineRecord> pipelines;
  IndexedVector<CatalogueLayer, LayerRecord> layers;
  IndexedVector<GroupId, WeightGroupRecord> weight_groups;
  IndexedVector<UseId, UseRecord> uses;
  std::vector<TensorRecord> tensors;

 private:
  using GroupInLayer = std::pair<GroupId, CatalogueLayer>;

  void add_layer(const LayerRequest& layer) {
    LayerRecord record{};
    copy_name(record.name, layer.name);
    record.arguments_hash = layer.arguments_hash;
    record.first_tensor = static_cast<std::uint32_t>(tensors.size());
    record.num_tensors = static_cast<std::uint32_t>(layer.parameters.size());
    record.num_buffers = layer.num_buffers;
    record.pipeline = static_cast<std::uint32_t>(pipelines.size());
    own_weight_groups_.clear();
    for (const ParameterRequest& parameter : layer.parameters) add_parameter(parameter, CatalogueLayer(layers.size()));
    layers.push_back(record);
  }

  void add_parameter(const ParameterRequest& parameter, CatalogueLayer layer) {
    if (parameter.is_correction) return add_correction(parameter, layer);
    // The untied parameters of a layer form two weight groups per dtype: one of the trained
    // parameters and one of the frozen ones.
    auto& known = parameter.tied_group >= 0 ? tied_weight_groups_ : own_weight_groups_;
    const int key = parameter.tied_group >= 0
                        ? parameter.tied_group
                        : 2 * static_cast<int>(parameter.dtype) + static_cast<int>(parameter.is_trained);
    const auto [place, is_new] = known.try_emplace(key, weight_groups.size());
    if (is_new) add_group(parameter);
    TensorRecord tensor{};
    copy_name(tensor.name, parameter.name);
    tensor.desc = describe(parameter);
    if (is_new && parameter.tied_group >= 0) first_of_tied_.emplace(parameter.tied_group, tensor.desc);
    if (parameter.tied_group >= 0) check_tied(parameter, tensor.desc, weight_groups[place->second].is_trained != 0);
    if (is_new || parameter.tied_group < 0) {
      WeightGroupRecord& group = weight_groups[place->second];
      tensor.element_offset = group.num_elements;
      group.num_elements += align_up(tensor.desc.bytes() / dtype_bytes(parameter.dtype), kElementAlignment);
    }
    tensors.push_back(tensor);
    group_of_tensor_.emplace_back(place->second, layer);
  }

  void add_group(const ParameterRequest& parameter) {
    weight_groups.push_back({.dtype = parameter.dtype,
                             .num_copies = parameter.is_trained ? num_copies_ : 1,
                             .pipeline = static_cast<std::uint32_t>(pipelines.size()),
                             .is_trained = parameter.is_trained,
                             .is_correction = parameter.is_correction});
  }

  // The update compares each element with the mean of all, so padding would be wrong.
  void add_correction(const ParameterRequest& parameter, CatalogueLayer layer) {
    const GroupId group(weight_groups.size());
    add_group(parameter);
    TensorRecord tensor{};
    copy_name(tensor.name, parameter.name);
    tensor.desc = describe(parameter);
    weight_groups[group].num_elements = tensor.desc.bytes() / dtype_bytes(parameter.dtype);
    tensors.push_back(tensor);
    group_of_tensor_.emplace_back(group, layer);
  }

  void check_tied(const ParameterRequest& parameter, const TensorDesc& desc, bool is_trained) const {
    if (parameter.is_trained != is_trained) {
      throw Error(ExitCode::kUsage,
                  cat("parameter ", parameter.name, " is ", parameter.is_trained ? "trained" : "frozen",
                      ", but tied to one that is ", is_trained ? "trained" : "frozen", "; freeze both or none"));
    }
    const TensorDesc& first = first_of_tied_.at(parameter.tied_group);
    if (desc.dtype == first.dtype && desc.rank == first.rank && desc.shape == first.shape) return;
    throw Error(ExitCode::kUsage, cat("parameter ", parameter.name, " is tied to one of another shape or dtype (group ",
                                      parameter.tied_group, "); tied parameters must be alike"));
  }

  std::uint32_t num_copies_ = 1;               // of the pipeline that is being added
  std::map<int, GroupId> tied_weight_groups_;  // by tied group
  std::map<int, TensorDesc> first_of_tied_;    // the first parameter of each, by tied group
  std::map<int, GroupId> own_weight_groups_;   // of the layer that is being added, by dtype and whether trained
  std::vector<GroupInLayer> group_of_tensor_;
};

}  // namespace

Catalogue Catalogue::lay_out(const std::vector<PipelineRequest>& pipelines, NodePlace place, Reduce reduce) {
  CatalogueBuilder builder;
  for (const PipelineRequest& pipeline : pipelines) builder.add_pipeline(pipeline);
  builder.make_uses();
  Catalogue result;
  result.place_ = place;
  result.reduce_ = reduce;
  result.weight_groups_ = std::move(builder.weight_groups);
  result.index_trained();
  for (UseRecord& use : builder.uses) {
    const WeightGroupRecord& group = result.weight_groups_[use.group];
    if (group.is_trained == 0) continue;
    use.gradient_offset = take(result.gradient_bytes_, result.gradient_buffer_bytes(use.group));
    if (pipelines[group.pipeline].with_sums)
      use.sum_offset = take(result.state_bytes_, result.owned(use.group).size() * 4);
  }
  for (const GroupId index : result.weight_groups_.indices()) {
    WeightGroupRecord& group = result.weight_groups_[index];
    const std::uint64_t owned = result.owned(index).size();
    for (std::uint32_t copy = 0; copy < group.num_copies; ++copy) {
      group.parameter_offset[copy] = take(result.parameter_bytes_, group.bytes());
    }
    if (group.is_trained == 0) continue;
    const bool is_correction = group.is_correction != 0;
    group.master_dtype = is_correction ? group.dtype : pipelines[group.pipeline].master_dtype;
    if (!group.working_is_master()) {
      group.master_offset = take(result.state_bytes_, owned * dtype_bytes(group.master_dtype));
    }
    const int num_moments = is_correction ? 0 : pipelines[group.pipeline].num_moments;
    if (num_moments >= 1) group.moment1_offset = take(result.state_bytes_, owned * 4);
    if (num_moments >= 2) group.moment2_offset = take(result.state_bytes_, owned * 4);
  }
  result.pipelines_ = std::move(builder.pipelines);
  result.layers_ = std::move(builder.layers);
  result.uses_ = std::move(builder.uses);
  result.tensors_ = std::move(builder.tensors);
  result.index_uses();
  return result;
}

Catalogue::Share Catalogue::share_of(std::uint32_t pipeline) const {
  Share share;
  // The padding of a weight group to whole pages is counted, as it is in the totals.
  const auto add_if_there = [](std::uint64_t& sum, std::uint64_t offset, std::uint64_t bytes) {
    if (offset != kNoOffset) (void)take(sum, bytes);
  };
  for (const UseRecord& use : uses_) {
    const WeightGroupRecord& group = weight_groups_[use.group];
    if (group.pipeline != pipeline) continue;
    add_if_there(share.gradient_bytes, use.gradient_offset, gradient_buffer_bytes(use.group));
    add_if_there(share.state_bytes, use.sum_offset, owned(use.group).size() * 4);
  }
  for (const GroupId index : pipelines_[pipeline].groups()) {
    const WeightGroupRecord& group = weight_groups_[index];
    const std::uint64_t owned_elements = owned(index).size();
    for (std::uint32_t copy = 0; copy < group.num_copies; ++copy) (void)take(share.parameter_bytes, group.bytes());
    add_if_there(share.state_bytes, group.master_offset, owned_elements * dtype_bytes(group.master_dtype));
    add_if_there(share.state_bytes, group.moment1_offset, owned_elements * 4);
    add_if_there(share.state_bytes, group.moment2_offset, owned_elements * 4);
  }
  std::set<std::pair<GroupId, std::uint64_t>> counted;  // (group, element offset)
  for (const TensorRecord& tensor : tensors_) {
    const GroupId group = uses_[tensor.use].group;
    if (weight_groups_[group].pipeline != pipeline || tensor.desc.bytes() == 0 ||
        !counted.emplace(group, tensor.element_offset).second)
      continue;
    share.num_parameters += tensor.desc.bytes() / dtype_bytes(tensor.desc.dtype);
  }
  return share;
}

}  // namespace rp
