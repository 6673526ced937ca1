// hoststore/catalogue.h
// Where every parameter of the model lies in the arenas. Byte format: docs/formats/catalogue.md.
//
// Built by the coordinator before the workers start, written once into the control segment with a checksum, and copied
// out by each worker at attach. Never changes afterwards.
//
// The layers of all pipelines are numbered through. A *weight group* is the unit of upload, version and update: all
// untied parameters of a layer that are trained, those that are frozen, or one tied parameter. A *use* is one layer's
// use of a group, with a gradient of its own if it is trained. Offsets are from the start of the named arena.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hoststore/boundary.h"

namespace rp {

// An offset of what is not there.
inline constexpr std::uint64_t kNoOffset = UINT64_MAX;

// Weight groups lie on pages of their own, in the arenas and in a device's buffers.
inline constexpr std::uint64_t kGroupAlignment = 4096;

struct WeightGroupRecord {
  using ShmFormat = void;
  DType dtype = DType::kFloat32;                    // of the working copies and of gradients
  std::uint32_t num_copies = 1;                     // working copies: 2 if steps are asynchronous
  std::uint64_t num_elements = 0;                   // padding between parameters included
  std::array<std::uint64_t, 2> parameter_offset{};  // parameter arena, of each working copy
  // State arena. None if the master has the working copies' dtype: the newest of them is the master then.
  std::uint64_t master_offset = kNoOffset;
  std::uint64_t moment1_offset = kNoOffset;  // state arena: fp32. None of a frozen group, as of masters
  std::uint64_t moment2_offset = kNoOffset;  // state arena: fp32. Of each moment none that no rule needs
  std::uint32_t first_use = 0;               // in layer order
  std::uint32_t num_uses = 0;
  std::uint32_t pipeline = 0;
  std::uint32_t is_trained = 1;  // 0: frozen, in one working copy
  DType master_dtype = DType::kFloat32;
  std::uint32_t reserved = 0;

  [[nodiscard]] std::uint64_t bytes() const { return num_elements * dtype_bytes(dtype); }
  [[nodiscard]] bool working_is_master() const { return dtype == master_dtype; }
  // What it takes of a device's buffer of weights, or of rounded gradients, and of one of fp32 gradients: whole pages,
  // and a place of its own even where it has no elements.
  [[nodiscard]] std::uint64_t device_bytes() const { return on_pages(bytes()); }
  [[nodiscard]] std::uint64_t accumulator_bytes() const { return on_pages(num_elements * sizeof(float)); }

  [[nodiscard]] static constexpr std::uint64_t on_pages(std::uint64_t bytes) {
    return align_up(std::max<std::uint64_t>(bytes, 1), kGroupAlignment);
  }
};
static_assert(sizeof(WeightGroupRecord) == 80 && ShmSafe<WeightGroupRecord>);

// Uses are sorted by group, then by layer.
struct UseRecord {
  using ShmFormat = void;
  std::uint32_t group = 0;
  std::uint32_t layer = 0;
  std::uint64_t gradient_offset = kNoOffset;  // gradient arena; trained groups only
  std::uint64_t sum_offset = kNoOffset;       // state arena: fp32; only where gradients of several rounds are added
};
static_assert(sizeof(UseRecord) == 24 && ShmSafe<UseRecord>);

struct TensorRecord {
  using ShmFormat = void;
  std::array<char, 128> name{};  // within its layer
  std::uint32_t use = 0;         // the (group, layer) that it belongs to
  std::uint32_t reserved = 0;
  std::uint64_t element_offset = 0;  // within the group
  TensorDesc desc;
};
static_assert(sizeof(TensorRecord) == 224 && ShmSafe<TensorRecord>);

struct LayerRecord {
  using ShmFormat = void;
  std::array<char, 112> name{};
  std::uint64_t arguments_hash = 0;  // of the factory's arguments: part of what processes compare
  std::uint32_t first_tensor = 0;
  std::uint32_t num_tensors = 0;
  std::uint32_t num_buffers = 0;
  std::uint32_t pipeline = 0;
};
static_assert(sizeof(LayerRecord) == 136 && ShmSafe<LayerRecord>);

struct PipelineRecord {
  using ShmFormat = void;
  std::array<char, 104> name{};
  std::uint64_t seed = 0;  // of its random numbers
  std::uint32_t first_layer = 0;
  std::uint32_t num_layers = 0;
  std::uint32_t first_group = 0;
  std::uint32_t num_groups = 0;
};
static_assert(sizeof(PipelineRecord) == 128 && ShmSafe<PipelineRecord>);

// What a layer asks for: a parameter by name, and the tied group (>= 0, within the pipeline) that it belongs to, or -1.
struct ParameterRequest {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape{};
  int tied_group = -1;
  bool is_trained = true;
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
  bool with_sums = false;        // room for the fp32 sum of several rounds' gradients
  int num_moments = 2;           // fp32 values that the update rule keeps per parameter
  DType master_dtype = DType::kFloat32;
};

class Catalogue {
 public:
  Catalogue() = default;

  // Lays the arenas out. Throws rp::Error (kUsage) for a name that is too long, more than kMaxRank dimensions, or tied
  // parameters of different shapes or of which only some are trained.
  static Catalogue lay_out(const std::vector<PipelineRequest>& pipelines);
  // The same for one pipeline without a name.
  static Catalogue lay_out(std::vector<LayerRequest> layers, std::uint32_t num_copies, bool with_sums) {
    return lay_out({PipelineRequest{
        .name = "", .seed = 0, .layers = std::move(layers), .num_copies = num_copies, .with_sums = with_sums}});
  }

  // The catalogue as bytes, checksum included; and back. from_bytes() throws rp::Error (kUserError) for bytes that do
  // not fit together.
  [[nodiscard]] std::vector<std::byte> to_bytes() const;
  static Catalogue from_bytes(std::span<const std::byte> bytes);

  [[nodiscard]] int num_layers() const { return static_cast<int>(layers_.size()); }
  [[nodiscard]] const std::vector<PipelineRecord>& pipelines() const { return pipelines_; }
  [[nodiscard]] const std::vector<WeightGroupRecord>& weight_groups() const { return weight_groups_; }
  [[nodiscard]] const std::vector<UseRecord>& uses() const { return uses_; }
  [[nodiscard]] const std::vector<TensorRecord>& tensors() const { return tensors_; }
  [[nodiscard]] const LayerRecord& layer(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  // The parameters of a layer, in the layer's order.
  [[nodiscard]] std::span<const TensorRecord> tensors_of(int layer) const;
  // Indices into uses() of a layer, by weight group.
  [[nodiscard]] const std::vector<std::uint32_t>& uses_of(int layer) const {
    return uses_of_layer_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] std::span<const UseRecord> uses_of_group(std::uint32_t group) const;
  // Whether a parameter of this layer is trained.
  [[nodiscard]] bool is_trained(int layer) const;
  // A pipeline's weight groups of which that holds, in layer order.
  [[nodiscard]] std::vector<std::uint32_t> trained_groups(int pipeline) const;
  // The first layer of a pipeline with one, counted from the pipeline's; their number if all are frozen.
  [[nodiscard]] int first_trained_layer(int pipeline) const;

  [[nodiscard]] std::uint64_t parameter_bytes() const { return parameter_bytes_; }
  [[nodiscard]] std::uint64_t state_bytes() const { return state_bytes_; }
  [[nodiscard]] std::uint64_t gradient_bytes() const { return gradient_bytes_; }
  // Elements of all parameters, tied ones once, padding not counted.
  [[nodiscard]] std::uint64_t num_parameters() const;

  // What one pipeline has of all that; the pipelines' sums are the numbers above.
  struct Share {
    std::uint64_t parameter_bytes = 0;
    std::uint64_t state_bytes = 0;
    std::uint64_t gradient_bytes = 0;
    std::uint64_t num_parameters = 0;
  };
  [[nodiscard]] Share share_of(std::uint32_t pipeline) const;

 private:
  void index_uses();

  std::vector<PipelineRecord> pipelines_;
  std::vector<LayerRecord> layers_;
  std::vector<WeightGroupRecord> weight_groups_;
  std::vector<UseRecord> uses_;
  std::vector<TensorRecord> tensors_;
  std::vector<std::vector<std::uint32_t>> uses_of_layer_;
  std::uint64_t parameter_bytes_ = 0;
  std::uint64_t state_bytes_ = 0;
  std::uint64_t gradient_bytes_ = 0;
};

}  // namespace rp
