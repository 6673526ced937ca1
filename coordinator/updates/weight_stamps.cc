#include "coordinator/updates/weight_stamps.h"

#include "hoststore/data_checksum.h"

namespace rp {

WeightStamp& WeightStamps::stamp(std::uint32_t group, std::uint64_t version) {
  return store_.stamp(group, version % store_.catalogue().weight_groups()[group].num_copies);
}

void WeightStamps::stamp_all(std::uint32_t pipeline, std::uint64_t version) {
  if (!store_.checks_consistency()) return;
  const PipelineRecord& record = store_.catalogue().pipelines()[pipeline];
  for (std::uint32_t index = record.first_group; index < record.first_group + record.num_groups; ++index) {
    const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
    if (group.num_copies > 1 && version > 0) complete(index, version - 1);
    complete(index, group.is_trained != 0 ? version : 0);
  }
}

void WeightStamps::begin(std::uint32_t group, std::uint64_t version) {
  if (store_.checks_consistency()) stamp(group, version).publish_begin(version);
}

void WeightStamps::complete(std::uint32_t group, std::uint64_t version) {
  if (!store_.checks_consistency()) return;
  stamp(group, version).publish(version, DataChecksum::of(store_.working_copy(group, version)));
}

}  // namespace rp
