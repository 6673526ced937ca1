#include "hoststore/catalogue.h"

#include <algorithm>

namespace rp {

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

}  // namespace rp
