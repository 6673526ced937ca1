#include "coordinator/exchange/plan_exchange.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "nodes/node_tree.h"

namespace rp {

namespace {

// What begins at a layer.
constexpr std::byte kForward{1};
constexpr std::byte kBackward{2};
constexpr std::byte kFused{4};

// Returns the stages of layers [0, end) that begin where the bytes have this bit.
std::vector<LayerRange> stages_with(std::span<const std::byte> bytes, std::byte bit, int end) {
  std::vector<LayerRange> stages;
  for (int layer = 0; layer < end; ++layer) {
    if ((bytes[static_cast<std::size_t>(layer)] & bit) == bit) stages.push_back({layer, layer});
    if (!stages.empty()) stages.back().end = layer + 1;
  }
  return stages;
}

}  // namespace

std::vector<std::byte> bytes_of_plan(const Plan& plan, int num_layers) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(num_layers));
  for (const LayerRange& stage : plan.forward) bytes[static_cast<std::size_t>(stage.first)] |= kForward;
  for (const LayerRange& stage : plan.backward) bytes[static_cast<std::size_t>(stage.first)] |= kBackward;
  if (plan.fused_start < num_layers) bytes[static_cast<std::size_t>(plan.fused_start)] |= kFused;
  return bytes;
}

Plan plan_of_bytes(std::span<const std::byte> bytes) {
  const auto fused = std::ranges::find_if(bytes, [](std::byte byte) { return (byte & kFused) == kFused; });
  Plan plan;
  plan.fused_start = static_cast<int>(fused - bytes.begin());
  plan.forward = stages_with(bytes, kForward, plan.fused_start);
  plan.backward = stages_with(bytes, kBackward, plan.fused_start);
  std::ranges::reverse(plan.backward);
  return plan;
}

PlanExchange::PlanExchange(NodeNetwork& network, int pipeline, int num_layers, std::function<void()> on_plan)
    : network_(network),
      tag_{.kind = NodeMessageKind::kPlan, .number = static_cast<std::uint32_t>(pipeline)},
      num_layers_(static_cast<std::size_t>(num_layers)),
      on_plan_(std::move(on_plan)),
      children_(children_of(network.place())),
      received_(num_layers_) {}

void PlanExchange::begin_round(const Plan& own) {
  const int num_plans = std::exchange(has_begun_, true) ? 1 : 2;
  const MutexLock lock(mutex_);
  if (network_.place().node > 0) {
    num_wanted_ += num_plans;
    return receive();
  }
  const std::vector<std::byte> plan = bytes_of_plan(own, static_cast<int>(num_layers_));
  for (int i = 0; i < num_plans; ++i) {
    send(plan);
    plans_.push_back(own);
  }
}

void PlanExchange::send(const std::vector<std::byte>& plan) {
  const auto message = std::make_shared<std::vector<std::byte>>(plan);
  for (const int child : children_) network_.send(child, tag_, std::span(*message), [message] {});
}

void PlanExchange::receive() {
  if (is_receiving_ || num_wanted_ == 0) return;
  is_receiving_ = true;
  --num_wanted_;
  network_.receive(parent_of(network_.place().node), tag_, std::span(received_), [this] { end_receive(); });
}

void PlanExchange::end_receive() {
  send(received_);
  {
    const MutexLock lock(mutex_);
    plans_.push_back(plan_of_bytes(received_));
    is_receiving_ = false;
    receive();
  }
  on_plan_();
}

bool PlanExchange::has_plan() {
  const MutexLock lock(mutex_);
  return !plans_.empty();
}

Plan PlanExchange::take_plan() {
  const MutexLock lock(mutex_);
  Plan plan = std::move(plans_.front());
  plans_.pop_front();
  return plan;
}

}  // namespace rp
