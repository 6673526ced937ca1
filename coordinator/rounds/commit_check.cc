#include "coordinator/rounds/commit_check.h"

#include <set>

#include "common/text.h"
#include "hoststore/data_checksum.h"
#include "hoststore/protocol_rule.h"

namespace rp {

namespace {

std::string task_text(const Round& round, const Slot& slot) {
  return cat("slot ", slot.number, " (", phase_name(slot.phase), " of layers ", slot.layers.first, "-",
             slot.layers.end - 1, " of pipeline ", round.traits.pipeline, ", round ", round.number, ", step ",
             round.step, ") on worker ", slot.worker);
}

void check_seen(const Catalogue& catalogue, Round& round, const Slot& slot, GroupId group, const WeightsSeen& seen) {
  const Version wanted = catalogue.weight_groups()[group].version_in(round.version);
  const WeightsSeen& first = round.weights_seen.emplace(group, seen).first->second;
  if (seen.version == wanted && seen == first) return;
  throw violation_of(ProtocolRule::kSameWeights,
                     cat(task_text(round, slot), " computed with version ", seen.version, " of weight group ", group,
                         " (checksum ", seen.checksum, "), the round's first task with it with version ", first.version,
                         " (checksum ", first.checksum, "); wanted is version ", wanted));
}

}  // namespace

void check_weights_seen(Store& store, Round& round, const Slot& slot) {
  if (!store.checks_consistency()) return;
  const Catalogue& catalogue = store.catalogue();
  const RoundTable table = store.round_table(round);
  std::set<GroupId> missing;  // weight groups of the slot; a tied group is uploaded for one of its uses only
  std::set<GroupId> found;
  for (int layer = slot.layers.first; layer < slot.layers.end; ++layer) {
    for (const UseId use : catalogue.uses_of(round.catalogue_layer(layer))) {
      const GroupId group = catalogue.uses()[use].group;
      const WeightsSeen& seen = table.weights_seen(use, slot.phase != Phase::kForward);
      (seen.checksum == 0 ? missing : found).insert(group);
      if (seen.checksum != 0) check_seen(catalogue, round, slot, group, seen);
    }
  }
  for (const GroupId group : missing) {
    if (found.contains(group)) continue;
    throw violation_of(ProtocolRule::kSameWeights,
                       cat(task_text(round, slot), " is complete and has never uploaded weight group ", group));
  }
}

void check_gradient(Store& store, UseId use, std::uint64_t checksum) {
  if (!store.checks_consistency()) return;
  const std::uint64_t found = DataChecksum::of(store.gradient(use));
  if (found == checksum) return;
  const UseRecord& record = store.catalogue().uses()[use];
  throw violation_of(ProtocolRule::kGradientsStay,
                     cat("gradient buffer ", use, " (of weight group ", record.group, ", layer ", record.layer,
                         " of the catalogue) was committed ",
                         checksum == 0 ? std::string("before it was written") : cat("with checksum ", checksum),
                         " and had ", found, " when it was used"));
}

void check_kept_block(Store& store, const RoundTable& table, BlockRow row, int microbatch) {
  if (!store.checks_consistency()) return;
  const BlockPlace& place = table.place(row.kind, row.index, microbatch);
  const std::uint64_t wanted = table.checksum(row.kind, row.index, microbatch);
  const std::uint64_t found = DataChecksum::of({store.block_data(place), place.bytes});
  if (found == wanted) return;
  throw violation_of(
      ProtocolRule::kBlocksStay,
      cat("a block that is kept for the caller (boundary or layer ", row.index, ", microbatch ", microbatch,
          ", written by slot ", place.slot.number(), ") had checksum ", wanted, " and has now ", found));
}

}  // namespace rp
