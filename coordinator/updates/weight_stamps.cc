#include "coordinator/updates/weight_stamps.h"

#include "hoststore/block_checksum.h"

namespace rp {

WeightStamp& WeightStamps::stamp(std::uint32_t block, std::uint64_t version) {
  return store_.stamp(block, version % store_.catalogue().blocks()[block].num_copies);
}

void WeightStamps::stamp_all(std::uint32_t pipeline, std::uint64_t version) {
  if (!store_.checks_consistency()) return;
  const PipelineRecord& record = store_.catalogue().pipelines()[pipeline];
  for (std::uint32_t index = record.first_block; index < record.first_block + record.num_blocks; ++index) {
    const BlockRecord& block = store_.catalogue().blocks()[index];
    if (block.num_copies > 1 && version > 0) complete(index, version - 1);
    complete(index, block.is_trained != 0 ? version : 0);
  }
}

void WeightStamps::begin(std::uint32_t block, std::uint64_t version) {
  if (store_.checks_consistency()) stamp(block, version).publish_begin(version);
}

void WeightStamps::complete(std::uint32_t block, std::uint64_t version) {
  if (!store_.checks_consistency()) return;
  stamp(block, version).publish(version, BlockChecksum::of(store_.working_copy(block, version)));
}

}  // namespace rp
