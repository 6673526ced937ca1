// hoststore/catalogue.h
// Describes where each parameter of the model is stored in the arenas. Byte format:
// docs/formats/catalogue.md.
//
// The coordinator builds it before the workers start and writes it once, with a checksum, to the
// control segment. Each worker copies it when it attaches. It never changes afterwards.
//
// The layers of all pipelines share one numbering. A *weight group* is the unit of upload, version
// and update: all untied parameters of one dtype in a layer that are trained, those that are
// frozen, one tied parameter, or the correction of a router. A *use* is one layer's use of a group, with a gradient of
// its own if the group is trained. Offsets are from the start of the arena that the field names.
//
// If the run has several nodes, the state arena contains only what its node owns of each group
// (common/nodes.h): element i of a group is element i - owned(group).begin there. Working copies are
// complete, and so are gradients with Reduce::kMpi. With kNccl, a gradient buffer has what this node
// owns of the gradients of all nodes, in the order of the nodes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/indexed.h"
#include "common/nodes.h"
#include "hoststore/boundary.h"
#include "hoststore/ids.h"

namespace rp {

// The offset of something that does not exist.
inline constexpr std::uint64_t kNoOffset = UINT64_MAX;

// Each weight group begins on a new page, in the arenas and in a device's buffers.
inline constexpr std::uint64_t kGroupAlignment = 4096;

struct WeightGroupRecord {
  using ShmFormat = void;
  DType dtype = DType::kFloat32;                    // of the working copies and of gradients
  std::uint32_t num_copies = 1;                     // working copies: 2 if steps are asynchronous
  std::uint64_t num_elements = 0;                   // including the padding between parameters
  std::array<std::uint64_t, 2> parameter_offset{};  // in the parameter arena; one for each working copy
  // In the state arena. kNoOffset for a frozen group, or if the master has the dtype of the working
  // copies: then the newest working copy is the master.
  std::uint64_t master_offset = kNoOffset;
  // In the state arena, fp32. kNoOffset for a frozen group, or if the update rule does not need the moment.
  std::uint64_t moment1_offset = kNoOffset;
  std::uint64_t moment2_offset = kNoOffset;
  UseId first_use{};  // a group's uses are in layer order
  std::uint32_t num_uses = 0;
  std::uint32_t pipeline = 0;
  std::uint32_t is_trained = 1;  // 0: frozen, in one working copy
  DType master_dtype = DType::kFloat32;
  // 1: one correction of a router, without padding; its gradient is the load of each expert, and it has no moments.
  std::uint32_t is_correction = 0;

  [[nodiscard]] std::uint64_t bytes() const { return num_elements * dtype_bytes(dtype); }
  [[nodiscard]] bool working_is_master() const { return dtype == master_dtype; }
  // Returns the version that the group has when the pipeline's weights have `version`: frozen groups keep version 0.
  [[nodiscard]] Version version_in(Version version) const { return is_trained != 0 ? version : Version(0); }
  // Returns the number of the working copy that holds this version of the group.
  [[nodiscard]] std::uint64_t copy_of(Version version) const { return version.value() % num_copies; }
  // The number of bytes that the group occupies in a device's buffer: device_bytes() in one for
  // weights or rounded gradients, accumulator_bytes() in one for fp32 gradients. Both are whole
  // pages, and at least one page even if the group has no elements.
  [[nodiscard]] std::uint64_t device_bytes() const { return on_pages(bytes()); }
  [[nodiscard]] std::uint64_t accumulator_bytes() const { return on_pages(num_elements * sizeof(float)); }

  [[nodiscard]] static constexpr std::uint64_t on_pages(std::uint64_t bytes) {
    return align_up(std::max<std::uint64_t>(bytes, 1), kGroupAlignment);
  }
};
static_assert(sizeof(WeightGroupRecord) == 80 && ShmSafe<WeightGroupRecord>);

// One layer's use of a weight group. Catalogue::uses() is sorted by group, then by layer.
struct UseRecord {
  using ShmFormat = void;
  GroupId group{};
  CatalogueLayer layer{};
  std::uint64_t gradient_offset = kNoOffset;  // in the gradient arena; kNoOffset for a frozen group
  std::uint64_t sum_offset = kNoOffset;       // in the state arena, fp32; only if gradients of several rounds are added
};
static_assert(sizeof(UseRecord) == 24 && ShmSafe<UseRecord>);

struct TensorRecord {
  using ShmFormat = void;
  std::array<char, 128> name{};  // within its layer
  UseId use{};                   // the (group, layer) pair that the tensor belongs to
  std::uint32_t reserved = 0;
  std::uint64_t element_offset = 0;  // within the group
  TensorDesc desc;
};
static_assert(sizeof(TensorRecord) == 224 && ShmSafe<TensorRecord>);

struct LayerRecord {
  using ShmFormat = void;
  std::array<char, 112> name{};
  std::uint64_t arguments_hash = 0;  // hash of the arguments of the layer's factory; processes compare it
  std::uint32_t first_tensor = 0;
  std::uint32_t num_tensors = 0;
  std::uint32_t num_buffers = 0;
  std::uint32_t pipeline = 0;
};
static_assert(sizeof(LayerRecord) == 136 && ShmSafe<LayerRecord>);

struct PipelineRecord {
  using ShmFormat = void;
  std::array<char, 104> name{};
  std::uint64_t seed = 0;  // of the pipeline's random numbers
  CatalogueLayer first_layer{};
  std::uint32_t num_layers = 0;
  GroupId first_group{};
  std::uint32_t num_groups = 0;

  // These convert between the number of a layer within this pipeline and its number in the catalogue.
  [[nodiscard]] CatalogueLayer catalogue_layer(int layer) const { return first_layer + layer; }
  [[nodiscard]] int layer_of(CatalogueLayer layer) const { return static_cast<int>(layer - first_layer); }
  [[nodiscard]] NumberRange<GroupId> groups() const { return {first_group, first_group + num_groups}; }
};
static_assert(sizeof(PipelineRecord) == 128 && ShmSafe<PipelineRecord>);

// A parameter that a layer requests. `tied_group`: the tied group (>= 0, numbered within the
// pipeline) that it belongs to, or -1.
struct ParameterRequest {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape{};
  int tied_group = -1;
  bool is_trained = true;
  bool is_correction = false;  // of a router; trained, and not tied
};

struct LayerRequest {
  std::string name;
  std::uint64_t arguments_hash = 0;
  std::vector<ParameterRequest> parameters{};
  std::uint32_t num_buffers = 0;
};

struct PipelineRequest {
  std::string name;
  std::uint64_t seed = 0;
  std::vector<LayerRequest> layers;
  std::uint32_t num_copies = 1;  // working copies of a trained weight group
  bool with_sums = false;        // reserve memory for the fp32 sum of several rounds' gradients
  int num_moments = 2;           // fp32 values that the update rule keeps for each element
  DType master_dtype = DType::kFloat32;
};

class Catalogue {
 public:
  Catalogue() = default;

  // Computes the layout of the arenas of a node. Throws rp::Error (kUsage) if a name is too long, if
  // a parameter has more than kMaxRank dimensions, or if tied parameters differ in shape, in dtype
  // or in whether they are trained.
  static Catalogue lay_out(const std::vector<PipelineRequest>& pipelines, NodePlace place = {},
                           Reduce reduce = Reduce::kMpi);
  // The same for one pipeline without a name.
  static Catalogue lay_out(std::vector<LayerRequest> layers, std::uint32_t num_copies, bool with_sums) {
    return lay_out({PipelineRequest{
        .name = "", .seed = 0, .layers = std::move(layers), .num_copies = num_copies, .with_sums = with_sums}});
  }

  // to_bytes() returns the catalogue in its byte format, including the checksum, and from_bytes()
  // reads it. from_bytes() throws rp::Error (kUserError) if the bytes are damaged or inconsistent.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  static Catalogue from_bytes(std::span<const std::byte> bytes);

  [[nodiscard]] NodePlace place() const { return place_; }
  // Returns whether the workers exchange gradients with those of other nodes, so that a gradient buffer has a part of
  // each node's gradient.
  [[nodiscard]] bool workers_exchange() const { return reduce_ == Reduce::kNccl; }
  // Return the elements of a trained group that this node, or any node, owns.
  [[nodiscard]] ElementRange owned(GroupId group) const { return owned_by(place_.node, group); }
  [[nodiscard]] ElementRange owned_by(int node, GroupId group) const {
    return owned_elements(weight_groups_[group].num_elements, num_trained_before_[group], {node, place_.num_nodes});
  }
  // Returns the length of the gradient buffer of each use of a trained group, in bytes.
  [[nodiscard]] std::uint64_t gradient_buffer_bytes(GroupId group) const;
  // Returns where the part of a node's gradient begins in that buffer, in bytes. REQUIRES: workers_exchange().
  [[nodiscard]] std::uint64_t part_offset(GroupId group, int node) const {
    return static_cast<std::uint64_t>(node) * owned(group).size() * dtype_bytes(weight_groups_[group].dtype);
  }
  [[nodiscard]] int num_layers() const { return static_cast<int>(layers_.size()); }
  [[nodiscard]] const std::vector<PipelineRecord>& pipelines() const { return pipelines_; }
  [[nodiscard]] const IndexedVector<CatalogueLayer, LayerRecord>& layers() const { return layers_; }
  [[nodiscard]] const IndexedVector<GroupId, WeightGroupRecord>& weight_groups() const { return weight_groups_; }
  [[nodiscard]] const IndexedVector<UseId, UseRecord>& uses() const { return uses_; }
  [[nodiscard]] const std::vector<TensorRecord>& tensors() const { return tensors_; }
  // The parameters of a layer, in the order in which the layer declares them.
  [[nodiscard]] std::span<const TensorRecord> tensors_of(CatalogueLayer layer) const;
  // A layer's uses, in the order of their weight groups.
  [[nodiscard]] const std::vector<UseId>& uses_of(CatalogueLayer layer) const { return uses_of_layer_[layer]; }
  [[nodiscard]] std::span<const UseRecord> uses_of_group(GroupId group) const;
  // Returns whether any parameter of this layer is trained.
  [[nodiscard]] bool is_trained(CatalogueLayer layer) const;
  // Returns the trained weight groups of a pipeline, in layer order.
  [[nodiscard]] std::vector<GroupId> trained_groups(int pipeline) const;
  // Returns the first layer of a pipeline that has a trained parameter, counted from the pipeline's
  // first layer, or the pipeline's number of layers if all parameters are frozen.
  [[nodiscard]] int first_trained_layer(int pipeline) const;

  [[nodiscard]] std::uint64_t parameter_bytes() const { return parameter_bytes_; }
  [[nodiscard]] std::uint64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] std::uint64_t gradient_bytes() const { return gradient_bytes_; }
  // The number of elements of all parameters. Tied parameters are counted once; padding is not
  // counted.
  [[nodiscard]] std::uint64_t num_parameters() const;

  // One pipeline's part of the totals above, on this node.
  struct Share {
    std::uint64_t parameter_bytes = 0;
    std::uint64_t state_bytes = 0;
    std::uint64_t gradient_bytes = 0;
    std::uint64_t num_parameters = 0;
  };
  [[nodiscard]] Share share_of(std::uint32_t pipeline) const;
  // Returns the bytes of the longest piece in which this node receives gradients of other nodes.
  [[nodiscard]] std::uint64_t longest_piece_bytes(std::uint32_t pipeline) const;

 private:
  void index_trained();
  void index_uses();

  NodePlace place_;
  Reduce reduce_ = Reduce::kMpi;
  std::vector<PipelineRecord> pipelines_;
  IndexedVector<CatalogueLayer, LayerRecord> layers_;
  IndexedVector<GroupId, WeightGroupRecord> weight_groups_;
  IndexedVector<UseId, UseRecord> uses_;
  std::vector<TensorRecord> tensors_;
  IndexedVector<CatalogueLayer, std::vector<UseId>> uses_of_layer_;
  IndexedVector<GroupId, std::uint64_t> num_trained_before_;  // trained groups before this one
  std::uint64_t parameter_bytes_ = 0;
  std::uint64_t state_bytes_ = 0;
  std::uint64_t gradient_bytes_ = 0;
};

}  // namespace rp
