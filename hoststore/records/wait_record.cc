#include "hoststore/records/wait_record.h"

#include "common/system/clock.h"
#include "common/text.h"
#include "hoststore/control.h"
#include "hoststore/records/trace_journal.h"

namespace rp {

namespace {

// Writing a record takes nanoseconds. A writer that is still writing after this many reads is
// stopped or dead.
constexpr int kMaxLooks = 1000;

// Boundary b is in front of layer b.
std::string boundary_text(std::int64_t boundary) {
  return boundary == 0 ? "the model's inputs" : cat("the outputs of layer ", boundary - 1);
}

std::string block_text(BlockKind kind, std::int64_t index) {
  switch (kind) {
    case BlockKind::kActivation: return boundary_text(index);
    case BlockKind::kGradient: return cat("the gradient of ", boundary_text(index));
    case BlockKind::kRecompute: return cat("the recompute data of layer ", index);
    case BlockKind::kBuffers: return cat("the buffers of layer ", index);
    case BlockKind::kArguments: return "the loss's arguments";
    case BlockKind::kInputImport: return cat("list ", index, " of the model's inputs");
    case BlockKind::kArgumentImport: return cat("list ", index, " of the loss's arguments");
  }
  return "a block";
}

}  // namespace

std::string round_text(std::int64_t round) {
  constexpr auto kFirst = static_cast<std::int64_t>(kFirstEvaluation);
  return round >= kFirst ? cat("evaluation ", round - kFirst) : cat("round ", round);
}

std::string Wait::text() const {
  const auto& [a, b, c, d] = numbers;
  switch (kind) {
    case WaitKind::kNone: return "nothing";
    case WaitKind::kWeights: return cat("version ", a, " of weight group ", b);
    case WaitKind::kInputs:
      return cat("microbatch ", a, " of ", block_text(static_cast<BlockKind>(b), c), " from worker ", d);
    case WaitKind::kGradientReleased: return cat("gradient buffer ", a, " to be free again");
    case WaitKind::kOwnInputBuffer: return "a free input buffer";
    case WaitKind::kOwnWeights: return "its weights";
    case WaitKind::kOwnInputs: return cat("its inputs of microbatch ", a);
    case WaitKind::kOwnStageBuffer: return "a free stage buffer";
    case WaitKind::kOwnGradientBuffer: return "a free gradient buffer";
    case WaitKind::kCompletion: return cat("worker ", a, " to complete slot ", slot);
    case WaitKind::kWorkerStart: return cat("worker ", a, " to start");
    case WaitKind::kRoundPlace: return cat("an earlier round of pipeline ", a, " to end");
    case WaitKind::kOutputs: return cat("the loss or outputs of ", round_text(a), ", up to slot ", slot);
    case WaitKind::kRoundEnd: return cat("the end of ", round_text(a), ", slot ", slot);
    case WaitKind::kCommits: return "all slots to be committed";
    case WaitKind::kUpdates: return cat("version ", a, " of the weights of pipeline ", b);
    case WaitKind::kNorm: return cat("the gradient norm of pipeline ", a);
    case WaitKind::kGradients:
      return cat("the gradients for version ", a, " of the weights: ", b, " of ", c, " groups have theirs");
    case WaitKind::kLossScale: return cat("the loss scale of version ", a, ", pipeline ", b);
    case WaitKind::kNextTask: return "the next task";
    case WaitKind::kNextSlot: return "the next round";
    case WaitKind::kOwnCopies: return "its earlier copies to end";
    case WaitKind::kOwnOutputs: return "the download of earlier outputs";
    case WaitKind::kStateSaved: return cat("weight group ", a, " to be saved");
    case WaitKind::kNextStep: return cat("the next step (version ", a, " of the weights is there)");
    case WaitKind::kNodeDecision: return "the first node to make the same call";
    case WaitKind::kNodeRound: return cat("another node to compute ", round_text(a));
    case WaitKind::kNodeGradients:
      return cat("other nodes' gradients for version ", a, " of the weights: ", b, " of ", c, " groups have theirs");
    case WaitKind::kNodeSquares: return cat("other nodes' part of the gradient norm for version ", a);
    case WaitKind::kNodeWeights:
      return cat("other nodes to update version ", a, " of the weights: ", b, " of ", c, " groups are whole");
    case WaitKind::kNodeReceipt: return "other nodes to receive what it has sent";
    case WaitKind::kNodePlan: return cat("the first node's plan for ", round_text(a));
    case WaitKind::kNodeGpus: return "the GPUs of other nodes to exchange a gradient";
  }
  return "something that this rp-launch does not know";
}

// SYNC: release; pairs with the acquire in observe(). Each field is stored with release and loaded
// with acquire, so a reader that sees a field of a new wait also sees the odd number that was
// written before it.
void WaitRecord::write(const Wait& wait) {
  const std::uint32_t odd = record_->sequence.load(std::memory_order_relaxed) | 1;
  record_->sequence.store(odd, std::memory_order_relaxed);
  record_->kind.store(static_cast<std::uint32_t>(wait.kind), std::memory_order_release);
  record_->since_ns.store(wait.since_ns, std::memory_order_release);
  record_->slot.store(wait.slot, std::memory_order_release);
  for (std::size_t i = 0; i < wait.numbers.size(); ++i) {
    record_->numbers[i].store(wait.numbers[i], std::memory_order_release);
  }
  record_->sequence.store(odd + 1, std::memory_order_release);
}

void WaitRecord::publish(const Wait& wait) {
  if (record_ == nullptr) return;
  if (track_ != nullptr && is_published()) trace();
  Wait timed = wait;
  timed.since_ns = now_ns();
  write(timed);
}

void WaitRecord::publish_none() {
  if (!is_published()) return;
  if (track_ != nullptr) trace();
  write(Wait{});
}

bool WaitRecord::is_published(const Wait& wait) const {
  const std::optional<Wait> published = observe();
  return published && published->kind == wait.kind && published->slot == wait.slot &&
         published->numbers == wait.numbers;
}

void WaitRecord::trace() const {
  if (const auto wait = observe()) track_->add_wait(*wait);  // never nullopt: this thread is the writer
}

// SYNC: pairs with write().
std::optional<Wait> WaitRecord::observe() const {
  if (record_ == nullptr) return std::nullopt;
  for (int look = 0; look < kMaxLooks; ++look) {
    const std::uint32_t before = record_->sequence.load(std::memory_order_acquire);
    Wait wait{.kind = static_cast<WaitKind>(record_->kind.load(std::memory_order_acquire)),
              .slot = record_->slot.load(std::memory_order_acquire),
              .numbers = {},
              .since_ns = record_->since_ns.load(std::memory_order_acquire)};
    for (std::size_t i = 0; i < wait.numbers.size(); ++i) {
      wait.numbers[i] = record_->numbers[i].load(std::memory_order_acquire);
    }
    const std::uint32_t after = record_->sequence.load(std::memory_order_relaxed);
    if (before != after || before % 2 != 0) continue;
    if (wait.kind == WaitKind::kNone) return std::nullopt;
    return wait;
  }
  return std::nullopt;
}

}  // namespace rp
