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
  if (scratch.empty()) return;
  RP_ASSERT(scratch.size() >= journal_bytes(store.catalogue(), groups));
  journal_.emplace(scratch.data(), num_chunks(most_elements(store.catalogue(), groups)), kMaxJournalThreads);
}

std::uint64_t MemoryGroupUpdater::journal_bytes(const Catalogue& catalogue, std::span<const GroupId> groups) {
  return UpdateJournal::bytes(num_chunks(most_elements(catalogue, groups)), kMaxJournalThreads);
}

std::optional<GroupId> MemoryGroupUpdater::unfinished(Version version) const {
  if (!journal_) return std::nullopt;
  for (const GroupId group : store_.catalogue().weight_groups().indices()) {
    if (journal_->last_pass() == pass_number(group, version)) return group;
  }
  return std::nullopt;
}

void MemoryGroupUpdater::add_to_sum(const GradientPart& part, bool begins) {
  const UseRecord& use = store_.catalogue().uses()[part.use];
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[use.group];
  float* sum = store_.state(use.sum_offset) + (part.elements.begin - store_.catalogue().owned(use.group).begin);
  const void* gradient = part.data;
  add_gradients(sum, {.uses = &gradient, .num_uses = 1, .dtype = group.dtype, .num_elements = part.elements.size()},
                team_, begins);
}

void MemoryGroupUpdater::sum_squares(GroupId group, std::span<double> chunks) {
  std::vector<const void*> pointers;
  sum_squares_of_chunks(gradients_of(group, pointers), chunks, team_);
}

void MemoryGroupUpdater::write_gradient(GroupId group, const UpdateStep& scaling, float* gradient) {
  std::vector<const void*> pointers;
  rp::write_gradient(gradient, gradients_of(group, pointers), scaling, team_);
}

void MemoryGroupUpdater::update(GroupId group, Version version, std::span<const UpdateSpan> rules) {
  const GroupState state = state_of(group, version);
  if (rules.empty()) {
    skip_group(state, team_);
    copy_what_others_own(group, version);
    return;
  }
  const ElementRange owned = store_.catalogue().owned(group);
  std::vector<UpdateSpan> spans;
  for (const UpdateSpan& rule : rules) {
    const auto place = [&](std::uint64_t element) { return std::clamp(element, owned.begin, owned.end) - owned.begin; };
    spans.push_back({.begin = place(rule.begin), .end = place(rule.end), .step = rule.step});
  }
  std::vector<const void*> pointers;
  GroupGradients gradients = gradients_of(group, pointers);
  std::vector<float> signs;
  if (store_.catalogue().weight_groups()[group].is_correction != 0) {
    signs = load_signs(gradients);
    pointers = {signs.data()};
    gradients = {.uses = pointers.data(), .num_uses = 1, .dtype = DType::kFloat32, .num_elements = signs.size()};
  }
  if (journal_) {
    update_group(state, gradients, spans, team_, *journal_, pass_number(group, version));
  } else {
    update_group(state, gradients, spans, team_);
  }
}

void MemoryGroupUpdater::copy_what_others_own(GroupId index, Version version) {
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
  if (group.num_copies == 1) return;
  const ElementRange owned = store_.catalogue().owned(index);
  const std::span<const std::byte> old = store_.working_copy(index, version - 1);
  const std::span<std::byte> copy = store_.working_copy(index, version);
  const auto copy_elements = [&](const ElementRange& elements) {
    const std::uint64_t bytes = dtype_bytes(group.dtype);
    std::ranges::copy(old.subspan(elements.begin * bytes, elements.size() * bytes),
                      copy.subspan(elements.begin * bytes).begin());
  };
  copy_elements({.begin = 0, .end = owned.begin});
  copy_elements({.begin = owned.end, .end = group.num_elements});
}

GroupGradients MemoryGroupUpdater::gradients_of(GroupId index, std::vector<const void*>& pointers) {
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
  const ElementRange owned = store_.catalogue().owned(index);
  for (const UseRecord& use : store_.catalogue().uses_of_group(index)) {
    pointers.push_back(adds_rounds_ ? static_cast<const void*>(store_.state(use.sum_offset))
                                    : store_.gradients(use.gradient_offset) + owned.begin * dtype_bytes(group.dtype));
  }
  return {.uses = pointers.data(),
          .num_uses = pointers.size(),
          .dtype = adds_rounds_ ? DType::kFloat32 : group.dtype,
          .num_elements = owned.size()};
}

GroupState MemoryGroupUpdater::state_of(GroupId index, Version version) {
  const WeightGroupRecord& group = store_.catalogue().weight_groups()[index];
  const ElementRange owned = store_.catalogue().owned(index);
  const auto moment = [&](std::uint64_t offset) { return offset == kNoOffset ? nullptr : store_.state(offset); };
  const auto owned_part = [&](Version of) {
    return store_.working_copy(index, of).data() + owned.begin * dtype_bytes(group.dtype);
  };
  GroupState state{.m = moment(group.moment1_offset), .v = moment(group.moment2_offset), .num_elements = owned.size()};
  if (group.working_is_master()) {
    state.old_master = reinterpret_cast<const float*>(owned_part(version - 1));
    state.master = reinterpret_cast<float*>(owned_part(version));
  } else {
    state.old_master = state.master = store_.state(group.master_offset);
    state.working = owned_part(version);
    state.working_dtype = group.dtype;
  }
  return state;
}

}  // namespace rp
