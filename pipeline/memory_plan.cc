#include "pipeline/memory_plan.h"

#include <algorithm>
#include <string_view>

#include "common/text.h"

namespace rp {

namespace {

constexpr std::string_view kActivations = "activations", kReceived = "gradients of other nodes";

// The part of a plan that follows from the catalogue.
MemoryPlan plan_of(const Catalogue::Share& share, bool two_copies, bool in_files) {
  MemoryPlan plan;
  const auto add = [&](std::string purpose, std::uint64_t bytes) {
    plan.items.push_back(
        {.purpose = std::move(purpose), .bytes = bytes, .measured_bytes = {}, .is_in_files = in_files});
  };
  add(two_copies ? "weights (two working copies)" : "weights", share.parameter_bytes);
  add("gradients", share.gradient_bytes);
  add("optimizer state", share.state_bytes);
  plan.num_parameters = static_cast<std::int64_t>(share.num_parameters);
  plan.bytes_per_parameter =
      static_cast<double>(plan.bytes()) / static_cast<double>(std::max<std::int64_t>(1, plan.num_parameters));
  return plan;
}

bool has_two_copies(const Catalogue& catalogue, std::uint32_t pipeline) {
  return std::any_of(
      catalogue.weight_groups().begin(), catalogue.weight_groups().end(),
      [pipeline](const WeightGroupRecord& group) { return group.pipeline == pipeline && group.num_copies > 1; });
}

std::string pages_text(const Store::Placement& placement) {
  std::string text = placement.has_huge_pages
                         ? "huge pages"
                         : "pages of 4 KiB; huge ones, which are cleared in a fraction of the time, after `echo advise "
                           "> /sys/kernel/mm/transparent_hugepage/shmem_enabled` as root";
  if (placement.num_nodes > 1) text += cat("; interleaved over ", placement.num_nodes, " NUMA nodes");
  return text;
}

void add_memory(MemoryPlan& plan, std::string_view purpose, std::uint64_t bytes) {
  plan.items.push_back({.purpose = std::string(purpose), .bytes = bytes, .measured_bytes = {}, .is_in_files = false});
}

// Returns what a pipeline has for gradients of other nodes, in the coordinator's own memory: nothing if GPUs exchange
// them.
std::uint64_t receive_bytes(const Catalogue& catalogue, std::uint32_t pipeline) {
  if (catalogue.workers_exchange()) return 0;
  return receive_buffers_bytes(catalogue.longest_piece_bytes(pipeline), catalogue.place().num_nodes);
}

}  // namespace

std::uint64_t MemoryPlan::bytes() const {
  std::uint64_t sum = 0;
  for (const Item& item : items) sum += item.bytes;
  return sum;
}

std::uint64_t MemoryPlan::measured_bytes() const {
  std::uint64_t sum = 0;
  for (const Item& item : items) sum += item.measured_bytes.value_or(0);
  return sum;
}

std::optional<std::uint64_t> MemoryPlan::activation_bytes() const {
  if (items.empty() || items.back().purpose != kActivations) return std::nullopt;
  return items.back().bytes;
}

MemoryPlan memory_plan_of(const Store& store, Coordinator* coordinator, int pipeline, bool in_files) {
  const auto number = static_cast<std::uint32_t>(pipeline);
  MemoryPlan plan = plan_of(store.catalogue().share_of(number), has_two_copies(store.catalogue(), number), in_files);
  if (const std::uint64_t bytes = receive_bytes(store.catalogue(), number); bytes > 0)
    add_memory(plan, kReceived, bytes);
  const std::uint64_t activations = coordinator == nullptr ? 0 : coordinator->activation_budget(pipeline).bytes();
  if (activations > 0) add_memory(plan, kActivations, activations);
  return plan;
}

std::vector<WorkerMemoryUse> worker_memory_of(const std::vector<DeviceMemoryPeaks>& peaks) {
  std::vector<WorkerMemoryUse> workers;
  for (std::size_t worker = 0; worker < peaks.size(); ++worker) {
    const DeviceMemoryPeaks& of = peaks[worker];
    if (of.peak_bytes == 0) continue;  // the worker has completed no task
    WorkerMemoryUse& use = workers.emplace_back();
    use.worker = static_cast<int>(worker);
    use.limit_bytes = of.limit_bytes;
    use.peak_bytes = of.peak_bytes;
    use.staged_bytes = of.staged_bytes;
    for (const MemoryUse each : of.peak_by_use.indices()) {
      if (of.peak_by_use[each] > 0) use.items.push_back({memory_use_name(each), of.peak_by_use[each]});
    }
    std::stable_sort(use.items.begin(), use.items.end(),
                     [](const auto& a, const auto& b) { return a.peak_bytes > b.peak_bytes; });
  }
  return workers;
}

MemoryPlan memory_plan_of_all(const Store& store, Coordinator* coordinator, bool in_files) {
  const Catalogue& catalogue = store.catalogue();
  Catalogue::Share all{.parameter_bytes = catalogue.parameter_bytes(),
                       .state_bytes = catalogue.state_bytes(),
                       .gradient_bytes = catalogue.gradient_bytes(),
                       .num_parameters = catalogue.num_parameters()};
  bool two_copies = false;
  std::uint64_t received = 0;
  ActivationBudget budget(store.num_workers());
  for (std::uint32_t pipeline = 0; pipeline < catalogue.pipelines().size(); ++pipeline) {
    two_copies |= has_two_copies(catalogue, pipeline);
    received += receive_bytes(catalogue, pipeline);
    if (coordinator != nullptr) budget.add(coordinator->activation_budget(static_cast<int>(pipeline)));
  }
  MemoryPlan plan = plan_of(all, two_copies, in_files);
  if (!in_files && store.header().is_sparse == 0) plan.pages = pages_text(store.placement());
  const StoreBytes measured = store.allocated();
  plan.items[0].measured_bytes = measured.parameters;
  plan.items[1].measured_bytes = measured.gradients;
  plan.items[2].measured_bytes = measured.state;
  add_memory(plan, "control", align_up(store.header().bytes, 4096) + store.journal_bytes());
  plan.items.back().measured_bytes = measured.control;
  if (received > 0) add_memory(plan, kReceived, received);
  if (budget.bytes() > 0) {
    add_memory(plan, kActivations, budget.bytes());
    plan.items.back().measured_bytes = measured.activations;
  }
  return plan;
}

}  // namespace rp
