// The bytes of a catalogue in the host store: Catalogue::to_bytes() and Catalogue::from_bytes().
#include "hoststore/catalogue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "roundpipe/error.h"

namespace rp {

namespace {

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

}  // namespace

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

}  // namespace rp
