#include "hoststore/catalogue.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include <xxhash.h>

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

struct CatalogueHeader {
  std::uint64_t checksum = 0;  // of everything that follows it
  std::uint64_t num_pipelines = 0;
  std::uint64_t num_layers = 0;
  std::uint64_t num_groups = 0;
  std::uint64_t num_uses = 0;
  std::uint64_t num_tensors = 0;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t state_bytes = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint32_t node = 0;
  std::uint32_t num_nodes = 1;
  Reduce reduce{};
  std::uint32_t reserved = 0;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  const std::span<const std::byte> rest = bytes.subspan(sizeof(std::uint64_t));
  return XXH3_64bits(rest.data(), rest.size());
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

bool ends(const auto& name) { return std::ranges::find(name, '\0') != name.end(); }

// Returns whether [first, first + count) is within [0, size).
bool fits(std::uint64_t first, std::uint64_t count, std::uint64_t size) {
  return first <= size && count <= size - first;
}

// Checks that every index and offset in a catalogue refers to something that exists. This is always
// true for a catalogue of the same program; other bytes would otherwise cause reads out of bounds.
class CatalogueCheck {
 public:
  explicit CatalogueCheck(const Catalogue& catalogue)
      : catalogue_(catalogue), num_layers_(static_cast<std::uint64_t>(catalogue.num_layers())) {}

  [[nodiscard]] bool is_sound() const {
    const auto all = [](const auto& records, const auto& is_good) { return std::ranges::all_of(records, is_good); };
    if (!all(catalogue_.pipelines(), [this](const PipelineRecord& r) { return is_good(r); })) return false;
    for (const GroupId group : catalogue_.weight_groups().indices()) {
      if (!is_good(group)) return false;
    }
    if (!all(catalogue_.uses(), [this](const UseRecord& r) { return is_good(r); })) return false;
    if (!all(catalogue_.tensors(), [this](const TensorRecord& r) { return is_good(r); })) return false;
    if (!all(catalogue_.layers(), [this](const LayerRecord& r) { return is_good(r); })) return false;
    const auto by_group = [](const UseRecord& a, const UseRecord& b) {
      return std::pair(a.group, a.layer) < std::pair(b.group, b.layer);
    };
    return std::ranges::is_sorted(catalogue_.uses(), by_group);
  }

 private:
  static constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 48;

  static bool is_dtype(DType dtype) { return static_cast<std::uint64_t>(dtype) < kNumDTypes && is_layer_dtype(dtype); }
  // Returns whether the range is inside an arena of `size` bytes, or is absent.
  static bool is_place(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) {
    return offset == kNoOffset || fits(offset, bytes, size);
  }

  [[nodiscard]] bool is_good(const PipelineRecord& record) const {
    return ends(record.name) && fits(record.first_layer.value(), record.num_layers, num_layers_) &&
           fits(record.first_group.value(), record.num_groups, catalogue_.weight_groups().size());
  }
  [[nodiscard]] bool is_good(const LayerRecord& record) const {
    return ends(record.name) && fits(record.first_tensor, record.num_tensors, catalogue_.tensors().size()) &&
           record.pipeline < catalogue_.pipelines().size();
  }
  [[nodiscard]] bool is_good(GroupId group) const {
    const WeightGroupRecord& record = catalogue_.weight_groups()[group];
    const std::uint64_t state = catalogue_.state_bytes();
    if (!is_dtype(record.dtype) || !is_dtype(record.master_dtype) || record.num_elements > kMaxElements) return false;
    if (record.num_copies < 1 || record.num_copies > record.parameter_offset.size() ||
        record.pipeline >= catalogue_.pipelines().size())
      return false;
    for (std::uint32_t copy = 0; copy < record.num_copies; ++copy) {
      if (!fits(record.parameter_offset[copy], record.bytes(), catalogue_.parameter_bytes())) return false;
    }
    const std::uint64_t owned = catalogue_.owned(group).size();
    return is_place(record.master_offset, owned * dtype_bytes(record.master_dtype), state) &&
           is_place(record.moment1_offset, owned * 4, state) && is_place(record.moment2_offset, owned * 4, state);
  }
  [[nodiscard]] bool is_good(const UseRecord& record) const {
    if (record.group.value() >= catalogue_.weight_groups().size() || record.layer.value() >= num_layers_) return false;
    const WeightGroupRecord& group = catalogue_.weight_groups()[record.group];
    if (group.is_trained != 0 && record.gradient_offset == kNoOffset) return false;
    return is_place(record.gradient_offset, catalogue_.gradient_buffer_bytes(record.group),
                    catalogue_.gradient_bytes()) &&
           is_place(record.sum_offset, catalogue_.owned(record.group).size() * 4, catalogue_.state_bytes());
  }
  [[nodiscard]] bool is_good(const TensorRecord& record) const {
    if (!ends(record.name) || record.use.value() >= catalogue_.uses().size()) return false;
    if (!is_dtype(record.desc.dtype) || record.desc.rank < 0 || record.desc.rank > kMaxRank) return false;
    std::uint64_t elements = 1;
    for (int i = 0; i < record.desc.rank; ++i) {
      const std::int64_t size = record.desc.shape[i];
      if (size < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements)) return false;
    }
    const WeightGroupRecord& group = catalogue_.weight_groups()[catalogue_.uses()[record.use].group];
    return record.desc.dtype == group.dtype && fits(record.element_offset, elements, group.num_elements);
  }

  const Catalogue& catalogue_;
  const std::uint64_t num_layers_;
};

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

void Catalogue::index_trained() {
  num_trained_before_ = {};
  std::uint64_t num = 0;
  for (const WeightGroupRecord& group : weight_groups_) {
    num_trained_before_.push_back(num);
    num += group.is_trained != 0 ? 1 : 0;
  }
}

void Catalogue::index_uses() {
  uses_of_layer_.assign(layers_.size(), {});
  for (WeightGroupRecord& group : weight_groups_) group.num_uses = 0;
  for (const UseId use : uses_.indices()) {
    WeightGroupRecord& group = weight_groups_[uses_[use].group];
    if (group.num_uses++ == 0) group.first_use = use;
    uses_of_layer_[uses_[use].layer].push_back(use);
  }
}

std::vector<std::byte> Catalogue::to_bytes() const {
  CatalogueHeader header{.num_pipelines = pipelines_.size(),
                         .num_layers = layers_.size(),
                         .num_groups = weight_groups_.size(),
                         .num_uses = uses_.size(),
                         .num_tensors = tensors_.size(),
                         .parameter_bytes = parameter_bytes_,
                         .state_bytes = state_bytes_,
                         .gradient_bytes = gradient_bytes_,
                         .node = static_cast<std::uint32_t>(place_.node),
                         .num_nodes = static_cast<std::uint32_t>(place_.num_nodes),
                         .reduce = reduce_};
  std::vector<std::byte> bytes(sizeof(header) + pipelines_.size() * sizeof(PipelineRecord) +
                               layers_.size() * sizeof(LayerRecord) +
                               weight_groups_.size() * sizeof(WeightGroupRecord) + uses_.size() * sizeof(UseRecord) +
                               tensors_.size() * sizeof(TensorRecord));
  std::size_t at = sizeof(header);
  const auto append = [&bytes, &at](const auto& records) {
    const std::size_t length = records.size() * sizeof(*records.data());
    if (length > 0) std::memcpy(bytes.data() + at, records.data(), length);
    at += length;
  };
  append(pipelines_);
  append(layers_);
  append(weight_groups_);
  append(uses_);
  append(tensors_);
  std::memcpy(bytes.data(), &header, sizeof(header));
  header.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

Catalogue Catalogue::from_bytes(std::span<const std::byte> bytes) {
  const Error damaged(ExitCode::kUserError, "the catalogue in the host store is damaged; start the run again");
  CatalogueHeader header;
  if (bytes.size() < sizeof(header)) throw damaged;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (checksum_of(bytes) != header.checksum) throw damaged;
  Catalogue result;
  std::size_t at = sizeof(header);
  const auto extract = [&](auto& records, std::uint64_t count) {
    const std::size_t record_bytes = sizeof(*records.data());
    if (count > (bytes.size() - at) / record_bytes) throw damaged;
    records.resize(count);
    if (count > 0) std::memcpy(static_cast<void*>(records.data()), bytes.data() + at, count * record_bytes);
    at += count * record_bytes;
  };
  extract(result.pipelines_, header.num_pipelines);
  extract(result.layers_, header.num_layers);
  extract(result.weight_groups_, header.num_groups);
  extract(result.uses_, header.num_uses);
  extract(result.tensors_, header.num_tensors);
  if (at != bytes.size() || header.num_nodes == 0 || header.num_nodes > kMaxNodes || header.node >= header.num_nodes ||
      header.reduce > Reduce::kNccl)
    throw damaged;
  result.place_ = {static_cast<int>(header.node), static_cast<int>(header.num_nodes)};
  result.reduce_ = header.reduce;
  result.parameter_bytes_ = header.parameter_bytes;
  result.state_bytes_ = header.state_bytes;
  result.gradient_bytes_ = header.gradient_bytes;
  result.index_trained();
  if (!CatalogueCheck(result).is_sound()) throw damaged;
  result.index_uses();
  return result;
}

std::uint64_t Catalogue::gradient_buffer_bytes(GroupId group) const {
  const WeightGroupRecord& record = weight_groups_[group];
  return workers_exchange() ? part_offset(group, place_.num_nodes) : record.bytes();
}

std::span<const TensorRecord> Catalogue::tensors_of(CatalogueLayer layer) const {
  const LayerRecord& record = layers_[layer];
  return std::span(tensors_).subspan(record.first_tensor, record.num_tensors);
}

std::span<const UseRecord> Catalogue::uses_of_group(GroupId group) const {
  const WeightGroupRecord& record = weight_groups_[group];
  return {uses_.data() + record.first_use.value(), record.num_uses};
}

bool Catalogue::is_trained(CatalogueLayer layer) const {
  const auto& uses = uses_of(layer);
  return std::any_of(uses.begin(), uses.end(),
                     [this](UseId use) { return weight_groups_[uses_[use].group].is_trained != 0; });
}

std::uint64_t Catalogue::num_parameters() const {
  std::uint64_t count = 0;
  for (std::uint32_t pipeline = 0; pipeline < pipelines_.size(); ++pipeline) count += share_of(pipeline).num_parameters;
  return count;
}

std::vector<GroupId> Catalogue::trained_groups(int pipeline) const {
  const PipelineRecord& record = pipelines_[pipeline];
  std::vector<GroupId> trained;
  for (const GroupId group : record.groups()) {
    if (weight_groups_[group].is_trained != 0) trained.push_back(group);
  }
  return trained;
}

int Catalogue::first_trained_layer(int pipeline) const {
  const PipelineRecord& record = pipelines_[pipeline];
  int layer = 0;
  while (layer < static_cast<int>(record.num_layers) && !is_trained(record.catalogue_layer(layer))) ++layer;
  return layer;
}

std::uint64_t Catalogue::longest_piece_bytes(std::uint32_t pipeline) const {
  std::uint64_t longest = 0;
  for (const GroupId group : trained_groups(static_cast<int>(pipeline))) {
    const std::uint64_t of_group =
        rp::longest_piece_bytes(owned(group).size(), dtype_bytes(weight_groups_[group].dtype));
    longest = std::max(longest, of_group);
  }
  return longest;
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
