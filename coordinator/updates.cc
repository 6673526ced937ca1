#include "coordinator/updates.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "coordinator/float_format.h"

namespace rp {

Updates::Updates(Store& store, std::uint32_t pipeline, int num_threads, bool adds_rounds)
    : store_(store), adds_rounds_(adds_rounds), team_(num_threads) {
  std::size_t partial_sums = 0;
  const PipelineRecord& record = store.catalogue().pipelines()[pipeline];
  for (std::uint32_t block = record.first_block; block < record.first_block + record.num_blocks; ++block) {
    if (store.catalogue().blocks()[block].is_trained == 0) continue;
    blocks_.push_back(block);
    partial_sums = std::max(partial_sums, num_partial_sums(store.catalogue().blocks()[block].num_elements));
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
  RP_ASSERT(version > version_);
  for (const auto& [_, step] : steps_) RP_ASSERT(!step.called);  // there may be one whose evaluations are done
  steps_.clear();
  version_ = version;
  for (const std::uint32_t block : blocks_) store_.published(block).publish(version);
}

Updates::Step& Updates::step_at(std::uint64_t version) {
  const auto [place, is_new] = steps_.try_emplace(version);
  if (is_new) {
    for (const std::uint32_t block : blocks_) place->second.open[block] = 0;
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
  for (const auto& [block, open] : step.open) {
    if (open == 0) step.ready.insert(block);
  }
  step.num_ready = static_cast<std::uint32_t>(step.ready.size());
  changed_.notify_all();
  return step.outcome;
}

void Updates::task_accepted(std::uint64_t version, std::uint32_t use) {
  MutexLock lock(mutex_);
  ++step_at(version).open[store_.catalogue().uses()[use].block];
}

void Updates::task_committed(std::uint64_t version, std::uint32_t use) {
  MutexLock lock(mutex_);
  close_one(step_at(version), store_.catalogue().uses()[use].block);
}

void Updates::gradient_committed(std::uint64_t version, std::uint32_t use, std::uint64_t taken_after,
                                 double square_sum) {
  MutexLock lock(mutex_);
  Step& step = step_at(version);
  const std::uint32_t block = store_.catalogue().uses()[use].block;
  step.taken_after[use] = taken_after;
  if (adds_rounds_) {
    to_add_.push_back({version, {use, taken_after}});  // the task is open until it is added
    changed_.notify_all();
    return;
  }
  step.square_sums[block] = square_sum;  // a tied block's is computed over all its uses, later
  close_one(step, block);
}

void Updates::close_one(Step& step, std::uint32_t block) {
  RP_ASSERT(step.open[block] > 0);
  if (--step.open[block] > 0 || !step.called) return;
  step.ready.insert(block);
  ++step.num_ready;
  changed_.notify_all();
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
  if (blocks_.empty()) return true;  // nothing to train
  if (step.ready.empty()) return false;
  return step.max_grad_norm <= 0 || step.num_ready == blocks_.size();
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
    pointers.push_back(adds_rounds_ ? static_cast<const void*>(store_.state(use.sum_offset))
                                    : store_.gradients(use.gradient_offset));
  }
  return {.uses = pointers.data(),
          .num_uses = pointers.size(),
          .format = adds_rounds_ ? FloatFormat::kFp32 : float_format_of(block.dtype),
          .num_elements = block.num_elements};
}

void Updates::add_one_gradient() {
  const auto [version, gradient] = to_add_.front();
  to_add_.pop_front();
  const UseRecord& use = store_.catalogue().uses()[gradient.use];
  const BlockRecord& block = store_.catalogue().blocks()[use.block];
  Step& step = step_at(version);
  const bool is_first = step.summed.insert(gradient.use).second;
  mutex_.unlock();
  float* sum = store_.state(use.sum_offset);
  if (is_first) std::fill_n(sum, block.num_elements, 0.0F);
  const void* pointer = store_.gradients(use.gradient_offset);
  add_gradients(sum, {.uses = &pointer, .num_uses = 1, .format = float_format_of(block.dtype), .num_elements = block.num_elements},
                team_);
  store_.taken(gradient.use).publish(gradient.taken_after);
  mutex_.lock();
  close_one(step, use.block);
}

double Updates::square_sum(std::uint32_t block) {
  std::vector<const void*> pointers;
  return sum_of_squares(gradients_of(block, pointers), partial_sums_, team_);
}

void Updates::finish_norm(Step& step) {
  double total = 0;
  for (const auto& [block, sum] : step.square_sums) total += sum;
  step.outcome->grad_norm = std::sqrt(total);
  step.outcome->skipped = step.max_grad_norm > 0 && !std::isfinite(step.outcome->grad_norm);
  step.outcome->norm_known = true;
  step.norm_done = true;
  changed_.notify_all();
}

void Updates::finish_norms_of_blocks(Step& step) {
  for (const std::uint32_t block : blocks_) {
    if (!adds_rounds_ && store_.catalogue().blocks()[block].num_uses == 1) continue;  // the workers did it
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
  if (blocks_.empty()) {
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
  const bool workers_summed = !adds_rounds_;
  const bool needs_sum = !clips && (!workers_summed || catalogue.blocks()[block].num_uses > 1);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> taken;  // gradient blocks to give back
  for (const UseRecord& use : catalogue.uses_of_block(block)) {
    const auto index = static_cast<std::uint32_t>(&use - catalogue.uses().data());
    if (workers_summed) taken.emplace_back(index, step.taken_after[index]);
  }
  mutex_.unlock();
  const double sum = needs_sum ? square_sum(block) : 0;
  apply(version, block, rule);
  store_.published(block).publish(version);
  for (const auto& [use, attempts] : taken) store_.taken(use).publish(attempts);
  mutex_.lock();
  if (needs_sum) step.square_sums[block] = sum;
  if (++step.num_applied == blocks_.size()) end_step(version, step);
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
