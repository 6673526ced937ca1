#include "coordinator/updates/memory_group_updater.h"

#include <algorithm>

#include "common/check.h"

namespace rp {

namespace {

constexpr int kMaxJournalThreads = 256;

std::uint64_t most_elements(const Catalogue& catalogue, std::span<const GroupId> groups) {
  std::uint64_t most = 0;
  for (const GroupId group : groups) most = std::max(most, catalogue.weight_groups()[group].num_elements);
  return most;
}

// Stands for the update of a group to a version.
std::uint64_t pass_number(GroupId group, Version version) {
  constexpr int kGroupBits = 24;
  return version.value() << kGroupBits | (group.value() + std::uint64_t{1});
}

}  // namespace

MemoryGroupUpdater::MemoryGroupUpdater(Store& store, std::span<const GroupId> groups, int num_threads, bool adds_rounds,
                                       std::span<std::byte> scratch)
    : store_(store),
      adds_rounds_(adds_rounds),
      team_(scratch.empty() ? num_threads : std::min(num_threads, kMaxJournalThreads)) {
  const std::uint64_t most = most_elements(store.catalogue(), groups);
  partial_sums_.resize(num_partial_sums(most));
  if (scratch.empty()) return;
  RP_ASSERT(scratch.size() >= journal_bytes(store.catalogue(), groups));
  journal_.emplace(scratch.data(), num_journal_chunks(most), kMaxJournalThreads);
}

std::uint64_t MemoryGroupUpdater::journal_bytes(const Catalogue& catalogue, std::span<const GroupId> groups) {
  return UpdateJournal::bytes(num_journal_chunks(most_elements(catalogue, groups)), kMaxJournalThreads);
}

std::optional<GroupId> MemoryGroupUpdater::unfinished(Version version) const {
  if (!journal_) return std::nullopt;
  for (const GroupId group : store_.catalogue().weight_groups().indices()) {
    if (journal_->last_pass() == pass_number(group, version)) return group;
  }
  return std::nullopt;
}

void MemoryGroupUpdater::add_to_sum(UseId index, bool begins) {
  const UseRecord& use = store_.catalogue().uses()[index];
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[use.group];
  float* sum = store_.state(use.sum_offset);
  if (begins) std::fill_n(sum, group.num_elements, 0.0F);
  const void* gradient = store_.gradients(use.gradient_offset);
  add_gradients(sum, {.uses = &gradient, .num_uses = 1, .dtype = group.dtype, .num_elements = group.num_elements},
                team_);
}

double MemoryGroupUpdater::square_sum(GroupId group) {
  std::vector<const void*> pointers;
  return sum_of_squares(gradients_of(group, pointers), partial_sums_, team_);
}

void MemoryGroupUpdater::write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) {
  std::vector<const void*> pointers;
  rp::write_gradient(gradient, gradients_of(group, pointers), scaling, team_);
}

void MemoryGroupUpdater::update(GroupId group, Version version, std::span<const UpdateSpan> rules) {
  const GroupState state = state_of(group, version);
  if (rules.empty()) {
    skip_group(state, team_);
    return;
  }
  std::vector<const void*> pointers;
  const GroupGradients gradients = gradients_of(group, pointers);
  if (journal_) {
    update_group(state, gradients, rules, team_, *journal_, pass_number(group, version));
  } else {
    update_group(state, gradients, rules, team_);
  }
}

GroupGradients MemoryGroupUpdater::gradients_of(GroupId index, std::vector<const void*>& pointers) {
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
  for (const UseRecord& use : store_.catalogue().uses_of_group(index)) {
    pointers.push_back(adds_rounds_ ? static_cast<const void*>(store_.state(use.sum_offset))
                                    : store_.gradients(use.gradient_offset));
  }
  return {.uses = pointers.data(),
          .num_uses = pointers.size(),
          .dtype = adds_rounds_ ? DType::kFloat32 : group.dtype,
          .num_elements = group.num_elements};
}

GroupState MemoryGroupUpdater::state_of(GroupId index, Version version) {
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
  const auto moment = [&](std::uint64_t offset) { return offset == kNoOffset ? nullptr : store_.state(offset); };
  GroupState state{
      .m = moment(group.moment1_offset), .v = moment(group.moment2_offset), .num_elements = group.num_elements};
  std::byte* copy = store_.working_copy(index, version).data();
  if (group.working_is_master()) {
    state.old_master = reinterpret_cast<const float*>(store_.working_copy(index, version - 1).data());
    state.master = reinterpret_cast<float*>(copy);
  } else {
    state.old_master = state.master = store_.state(group.master_offset);
    state.working = copy;
    state.working_dtype = group.dtype;
  }
  return state;
}

}  // namespace rp
