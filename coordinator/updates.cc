#include "coordinator/updates.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "coordinator/float_format.h"

namespace rp {

Updates::Updates(Store& store, int num_threads, int rounds_per_step)
    : store_(store), rounds_per_step_(rounds_per_step), team_(num_threads) {
  std::size_t partial_sums = 0;
  for (const BlockRecord& block : store.catalogue().blocks()) {
    partial_sums = std::max(partial_sums, num_partial_sums(block.num_elements));
  }
  partial_sums_.resize(partial_sums);
  thread_ = std::thread([this] { run(); });
}

Updates::~Updates() {
  stop(nullptr);
  thread_.join();
}

void Updates::stop(std::exception_ptr error) {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (!error_) error_ = std::move(error);
  changed_.notify_all();
}

void Updates::restart_at(std::uint64_t version) {
  MutexLock lock(mutex_);
  RP_ASSERT(steps_.empty() && version > version_);
  version_ = version;
  for (std::uint32_t block = 0; block < store_.catalogue().blocks().size(); ++block) {
    store_.published(block).publish(version);
  }
}

Updates::Step& Updates::step_at(std::uint64_t version) {
  const auto [place, is_new] = steps_.try_emplace(version);
  if (is_new) {
    const Catalogue& catalogue = store_.catalogue();
    for (const BlockRecord& block : catalogue.blocks()) {
      place->second.gradients_left.push_back(static_cast<int>(block.num_uses) * rounds_per_step_);
    }
    place->second.square_sums.resize(catalogue.blocks().size());
    place->second.taken_after.resize(catalogue.uses().size());
    place->second.outcome = std::make_shared<StepOutcome>();
  }
  return place->second;
}

std::shared_ptr<StepOutcome> Updates::accept_step(std::uint64_t version, const AdamWStep& rule, const StepOptions& options) {
  MutexLock lock(mutex_);
  Step& step = step_at(version);
  step.called = true;
  step.rule = rule;
  step.max_grad_norm = options.max_grad_norm;
  changed_.notify_all();
  return step.outcome;
}

void Updates::gradient_committed(std::uint64_t version, std::uint32_t use, std::uint64_t taken_after,
                                 double square_sum) {
  MutexLock lock(mutex_);
  Step& step = step_at(version);
  const std::uint32_t block = store_.catalogue().uses()[use].block;
  step.taken_after[use] = taken_after;
  if (rounds_per_step_ > 1) {
    to_add_.push_back({version, {use, taken_after}});
  } else {
    step.square_sums[block] = square_sum;  // a tied block's is computed over all its uses, later
    if (--step.gradients_left[block] == 0) block_is_final(step, block);
  }
  changed_.notify_all();
}

void Updates::block_is_final(Step& step, std::uint32_t block) {
  step.ready.insert(block);
  ++step.num_ready;
}

// The sum of a block belongs to one step until that step is applied to the block: an asynchronous run's next step may
// have gradients before.
bool Updates::can_add() {
  if (to_add_.empty()) return false;
  const auto& [version, gradient] = to_add_.front();
  return store_.published(store_.catalogue().uses()[gradient.use].block).observe() + 1 >= version;
}

bool Updates::can_update() {
  if (steps_.empty()) return false;
  const Step& step = steps_.begin()->second;
  if (!step.called) return false;
  if (step.gradients_left.empty()) return true;  // a model without parameters
  if (step.ready.empty()) return false;
  return step.max_grad_norm <= 0 || step.num_ready == step.gradients_left.size();
}

void Updates::run() {
  pthread_setname_np(pthread_self(), "rp-updates");
  MutexLock lock(mutex_);
  while (true) {
    while (!stopped_ && !can_add() && !can_update()) changed_.wait(mutex_);
    if (stopped_) return;
    if (can_add()) {
      add_one_gradient();
    } else {
      update_one_block();
    }
  }
}

BlockGradients Updates::gradients_of(std::uint32_t index, std::vector<const void*>& pointers) {
  const BlockRecord& block = store_.catalogue().blocks()[index];
  for (const UseRecord& use : store_.catalogue().uses_of_block(index)) {
    pointers.push_back(rounds_per_step_ > 1 ? static_cast<const void*>(store_.state(use.sum_offset))
                                            : store_.gradients(use.gradient_offset));
  }
  return {.uses = pointers.data(),
          .num_uses = pointers.size(),
          .format = rounds_per_step_ > 1 ? FloatFormat::kFp32 : float_format_of(block.dtype),
          .num_elements = block.num_elements};
}

void Updates::add_one_gradient() {
  const auto [version, gradient] = to_add_.front();
  to_add_.pop_front();
  const UseRecord& use = store_.catalogue().uses()[gradient.use];
  const BlockRecord& block = store_.catalogue().blocks()[use.block];
  Step& step = step_at(version);
  const bool is_first = step.gradients_left[use.block] > static_cast<int>(block.num_uses) * (rounds_per_step_ - 1);
  mutex_.unlock();
  float* sum = store_.state(use.sum_offset);
  if (is_first) std::fill_n(sum, block.num_elements, 0.0F);
  const void* pointer = store_.gradients(use.gradient_offset);
  add_gradients(sum, {.uses = &pointer, .num_uses = 1, .format = float_format_of(block.dtype), .num_elements = block.num_elements},
                team_);
  store_.taken(gradient.use).publish(gradient.taken_after);
  mutex_.lock();
  if (--step.gradients_left[use.block] == 0) block_is_final(step, use.block);
}

double Updates::square_sum(std::uint32_t block) {
  std::vector<const void*> pointers;
  return sum_of_squares(gradients_of(block, pointers), partial_sums_, team_);
}

void Updates::finish_norm(Step& step) {
  double total = 0;
  for (const double sum : step.square_sums) total += sum;
  step.outcome->grad_norm = std::sqrt(total);
  step.outcome->skipped = step.max_grad_norm > 0 && !std::isfinite(step.outcome->grad_norm);
  step.outcome->norm_known = true;
  step.norm_done = true;
  changed_.notify_all();
}

void Updates::finish_norms_of_blocks(Step& step) {
  for (std::uint32_t block = 0; block < step.square_sums.size(); ++block) {
    if (rounds_per_step_ == 1 && store_.catalogue().blocks()[block].num_uses == 1) continue;  // the workers did it
    mutex_.unlock();
    const double sum = square_sum(block);
    mutex_.lock();
    step.square_sums[block] = sum;
  }
  finish_norm(step);
}

void Updates::update_one_block() {
  const std::uint64_t version = steps_.begin()->first;
  Step& step = steps_.begin()->second;
  const Catalogue& catalogue = store_.catalogue();
  if (catalogue.blocks().empty()) {
    end_step(version, step);
    return;
  }
  const bool clips = step.max_grad_norm > 0;
  if (clips && !step.norm_done) finish_norms_of_blocks(step);
  const std::uint32_t block = *step.ready.begin();
  step.ready.erase(step.ready.begin());
  std::optional<AdamWStep> rule = step.rule;
  if (step.outcome->skipped) {
    rule.reset();
  } else if (clips && step.outcome->grad_norm > step.max_grad_norm) {
    rule->gradient_scale = static_cast<float>(step.max_grad_norm / (step.outcome->grad_norm + 1e-6));
  }
  const bool workers_summed = rounds_per_step_ == 1;
  const bool needs_sum = !clips && (!workers_summed || catalogue.blocks()[block].num_uses > 1);
  mutex_.unlock();
  const double sum = needs_sum ? square_sum(block) : 0;
  apply(version, block, rule);
  store_.published(block).publish(version);
  if (workers_summed) {
    for (const UseRecord& use : catalogue.uses_of_block(block)) {
      const auto index = static_cast<std::uint32_t>(&use - catalogue.uses().data());
      store_.taken(index).publish(step.taken_after[index]);
    }
  }
  mutex_.lock();
  if (needs_sum) step.square_sums[block] = sum;
  if (++step.num_applied == catalogue.blocks().size()) end_step(version, step);
}

void Updates::end_step(std::uint64_t version, Step& step) {
  if (!step.norm_done) finish_norm(step);
  version_ = version;
  steps_.erase(steps_.begin());
  changed_.notify_all();
}

void Updates::apply(std::uint64_t version, std::uint32_t index, const std::optional<AdamWStep>& rule) {
  const BlockRecord& block = store_.catalogue().blocks()[index];
  std::vector<const void*> pointers;
  const BlockGradients gradients = gradients_of(index, pointers);
  BlockState state{.m = store_.state(block.moment1_offset), .v = store_.state(block.moment2_offset),
                   .num_elements = block.num_elements};
  std::byte* copy = store_.parameters(block.parameter_offset[version % block.num_copies]);
  if (block.dtype == DType::kFloat32) {  // the newest working copy is the master
    state.old_master = reinterpret_cast<const float*>(store_.parameters(block.parameter_offset[(version - 1) % block.num_copies]));
    state.master = reinterpret_cast<float*>(copy);
  } else {
    state.old_master = state.master = store_.state(block.master_offset);
    state.working = copy;
    state.working_format = float_format_of(block.dtype);
  }
  if (rule) {
    update_block(state, gradients, *rule, team_);
  } else {
    skip_block(state, team_);
  }
}

void Updates::wait_applied(std::uint64_t version) {
  MutexLock lock(mutex_);
  while (version_ < version && !stopped_) changed_.wait(mutex_);
  if (version_ < version && error_) std::rethrow_exception(error_);
}

const StepOutcome& Updates::wait_norm(const StepOutcome& outcome) {
  MutexLock lock(mutex_);
  while (!outcome.norm_known && !stopped_) changed_.wait(mutex_);
  if (!outcome.norm_known && error_) std::rethrow_exception(error_);
  return outcome;
}

}  // namespace rp
