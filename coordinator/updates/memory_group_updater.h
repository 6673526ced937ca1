// coordinator/updates/memory_group_updater.h
// Updates weight groups in host memory: each sum, norm and update is one pass over memory by a
// ThreadTeam. The Store must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/updates/group_updater.h"
#include "hoststore/store.h"
#include "optimizer/thread_team.h"

namespace rp {

class MemoryGroupUpdater : public GroupUpdater {
 public:
  // `groups`: the trained weight groups that it will update. `adds_rounds`: their gradients are the
  // store's fp32 sums. `scratch`: journal_bytes() bytes that outlive the process, so that another one can finish an
  // update; empty: none can.
  MemoryGroupUpdater(Store& store, std::span<const GroupId> groups, int num_threads, bool adds_rounds,
                     std::span<std::byte> scratch = {});
  // Returns the scratch memory that the updates of these groups need.
  [[nodiscard]] static std::uint64_t journal_bytes(const Catalogue& catalogue, std::span<const GroupId> groups);

  void add_to_sum(const GradientPart& part, bool begins) override;
  void sum_squares(GroupId group, std::span<double> chunks) override;
  void write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) override;
  void update(GroupId group, Version version, std::span<const UpdateSpan> rules) override;
  [[nodiscard]] std::optional<GroupId> unfinished(Version version) const override;

 private:
  // `pointers`: holds the pointers to which the result refers.
  [[nodiscard]] GroupGradients gradients_of(GroupId index, std::vector<const void*>& pointers);
  [[nodiscard]] GroupState state_of(GroupId index, Version version);
  void copy_what_others_own(GroupId index, Version version);

  Store& store_;
  const bool adds_rounds_;
  ThreadTeam team_;
  std::optional<UpdateJournal> journal_;
};

}  // namespace rp
