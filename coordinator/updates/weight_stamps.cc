#include "coordinator/updates/weight_stamps.h"

#include "hoststore/data_checksum.h"

namespace rp {

WeightStamp& WeightStamps::stamp(GroupId group, Version version) {
  return store_.stamp(group, store_.catalogue().weight_groups()[group].copy_of(version));
}

void WeightStamps::stamp_all(std::uint32_t pipeline, Version version) {
  if (!store_.checks_consistency()) return;
  const PipelineRecord& record = store_.catalogue().pipelines()[pipeline];
  for (const GroupId index : record.groups()) {
    const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
    if (group.num_copies > 1 && version > Version(0)) complete(index, version - 1);
    complete(index, group.version_in(version));
  }
}

void WeightStamps::begin(GroupId group, Version version) {
  if (store_.checks_consistency()) stamp(group, version).publish_begin(version);
}

void WeightStamps::complete(GroupId group, Version version) {
  if (!store_.checks_consistency()) return;
  stamp(group, version).publish(version, DataChecksum::of(store_.working_copy(group, version)));
}

}  // namespace rp
