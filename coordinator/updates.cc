#include "coordinator/updates.h"

#include <pthread.h>

#include <cmath>

#include "common/check.h"
#include "coordinator/commit_check.h"
#include "coordinator/memory_block_updater.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::unique_ptr<BlockUpdater> make_updater(Store& store, std::span<const std::uint32_t> blocks, const UpdatesOptions& options) {
  if (options.modelled) {
    return std::make_unique<ModelledBlockUpdater>(store.catalogue(), *options.modelled, options.adds_rounds);
  }
  return std::make_unique<MemoryBlockUpdater>(store, blocks, options.num_threads, options.adds_rounds);
}

}  // namespace

Updates::Updates(Store& store, std::uint32_t pipeline, UpdatesOptions options)
    : store_(store),
      pipeline_(pipeline),
      options_(std::move(options)),
      blocks_(store.catalogue().trained_blocks(static_cast<int>(pipeline))),
      stamps_(store),
      waits_(options_.trace != nullptr ? options_.waits.traced_by(options_.trace->waits()) : options_.waits),
      updater_(make_updater(store, blocks_, options_)),
      loss_scaler_(store, pipeline, options_.loss_scaling) {
  thread_ = std::thread([this] { run(); });
}

Updates::~Updates() { end(); }

void Updates::end() {
  stop(nullptr);
  if (thread_.joinable()) thread_.join();
}

void Updates::stop(std::exception_ptr error) {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (!error_) error_ = std::move(error);
  changed_.notify_all();
}

void Updates::restart_at(std::uint64_t version, const UpdateHistory& history) {
  MutexLock lock(mutex_);
  RP_ASSERT(version > version_);
  for (const auto& [_, step] : steps_) RP_ASSERT(!step.called);  // there may be one whose evaluations are done
  steps_.clear();
  version_ = version;
  num_applied_ = history.num_applied;
  loss_scaler_.restart_at(version, history.loss_scale);
  for (const std::uint32_t block : blocks_) store_.published(block).publish(version);
}

UpdateHistory Updates::history() {
  MutexLock lock(mutex_);
  return {.num_applied = num_applied_, .loss_scale = loss_scaler_.history(version_)};
}

Updates::Step& Updates::step_at(std::uint64_t version) {
  const auto [place, is_new] = steps_.try_emplace(version);
  if (is_new) {
    for (const std::uint32_t block : blocks_) place->second.open[block] = 0;
    place->second.outcome = std::make_shared<StepOutcome>();
  }
  return place->second;
}

std::shared_ptr<StepOutcome> Updates::accept_step(std::uint64_t version, std::uint64_t used_version, StepRequest request) {
  MutexLock lock(mutex_);
  Step& step = step_at(version);
  step.called = true;
  step.used_version = used_version;
  step.request = std::move(request);
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
                                 double square_sum, std::uint64_t checksum) {
  MutexLock lock(mutex_);
  Step& step = step_at(version);
  const std::uint32_t block = store_.catalogue().uses()[use].block;
  step.taken_after[use] = taken_after;
  step.checksums[use] = checksum;
  if (options_.adds_rounds) {
    to_add_.push_back({version, {use, taken_after, checksum}});  // the task is open until it is added
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
  return !is_barrier(step) || step.num_ready == blocks_.size();
}

bool Updates::is_barrier(const Step& step) const {
  const StepOptions& options = step.request.options;
  return options.max_grad_norm > 0 || options.skip_nonfinite || loss_scaler_.is_on() || step.request.function;
}

// What the thread waits for: the gradients of a step that was called, or the next one.
Wait Updates::missing() {
  if (steps_.empty() || !steps_.begin()->second.called) {
    return {.kind = WaitKind::kNextStep, .numbers = {static_cast<std::int64_t>(version_)}};
  }
  const auto& [version, step] = *steps_.begin();
  return {.kind = WaitKind::kGradients,
          .numbers = {static_cast<std::int64_t>(version), step.num_ready, static_cast<std::int64_t>(blocks_.size())}};
}

void Updates::run() {
  pthread_setname_np(pthread_self(), "rp-updates");
  MutexLock lock(mutex_);
  while (true) {
    while (!stopped_ && !can_add() && !can_update()) {
      waits_.publish(missing());
      changed_.wait(mutex_);
    }
    if (stopped_) return;
    waits_.publish_none();
    if (can_add()) {
      add_one_gradient();
    } else {
      update();
    }
  }
}

void Updates::add_one_gradient() {
  const auto [version, gradient] = to_add_.front();
  to_add_.pop_front();
  Step& step = step_at(version);
  const bool is_first = step.summed.insert(gradient.use).second;
  mutex_.unlock();
  const std::int64_t since = trace_begin();
  updater_->add_to_sum(gradient.use, is_first);
  trace_end(TraceKind::kAddGradient, version, store_.catalogue().uses()[gradient.use].block, since);
  const bool is_sound = give_back({&gradient, 1});
  mutex_.lock();
  if (!is_sound) return;
  close_one(step, store_.catalogue().uses()[gradient.use].block);
}

void Updates::finish_norm(Step& step) {
  StepOutcome& outcome = *step.outcome;
  double total = 0;
  for (const auto& [block, sum] : step.square_sums) {
    total += sum;
    if (std::isfinite(sum)) continue;
    const Catalogue& catalogue = store_.catalogue();
    const std::uint32_t layer = catalogue.uses()[catalogue.blocks()[block].first_use].layer;
    const int number = static_cast<int>(layer - catalogue.pipelines()[pipeline_].first_layer);
    if (outcome.nonfinite_layers.empty() || outcome.nonfinite_layers.back() != number) outcome.nonfinite_layers.push_back(number);
  }
  outcome.loss_scale = loss_scaler_.scale_of(step.used_version);
  outcome.grad_norm = std::sqrt(total) / outcome.loss_scale;
  const StepOptions& options = step.request.options;
  outcome.skipped = (options.max_grad_norm > 0 || options.skip_nonfinite || loss_scaler_.is_on()) && !std::isfinite(total);
  outcome.norm_known = true;
  step.norm_done = true;
  changed_.notify_all();
}

void Updates::finish_norms_of_blocks(std::uint64_t version, Step& step) {
  for (const std::uint32_t block : blocks_) {
    if (!options_.adds_rounds && store_.catalogue().blocks()[block].num_uses == 1) continue;  // the workers did it
    mutex_.unlock();
    const std::int64_t since = trace_begin();
    const double sum = updater_->square_sum(block);
    trace_end(TraceKind::kNorm, version, block, since);
    mutex_.lock();
    step.square_sums[block] = sum;
  }
  finish_norm(step);
}

void Updates::set_scaling(UpdateStep& rule, const Step& step) const {
  const StepOptions& options = step.request.options;
  double scale = 1 / loss_scaler_.scale_of(step.used_version);
  if (options.max_grad_norm > 0 && step.outcome->grad_norm > options.max_grad_norm) {
    scale *= options.max_grad_norm / (step.outcome->grad_norm + 1e-6);
  }
  rule.gradient_scale = static_cast<float>(scale);
  rule.clips_values = options.max_grad_value > 0;
  if (rule.clips_values) rule.max_value = static_cast<float>(options.max_grad_value);
}

std::vector<UpdateSpan> Updates::rules_of(std::uint32_t block, const Step& step) const {
  std::vector<UpdateSpan> rules;
  const auto found = step.request.spans.find(block);
  const std::vector<GroupSpan> whole = {{.begin = 0, .end = store_.catalogue().blocks()[block].num_elements, .group = 0}};
  for (const GroupSpan& span : found == step.request.spans.end() ? whole : found->second) {
    UpdateStep rule = UpdateStep::of(step.request.rules[span.group], static_cast<std::int64_t>(num_applied_ + 1));
    set_scaling(rule, step);
    rules.push_back({.begin = span.begin, .end = span.end, .step = rule});
  }
  return rules;
}

std::vector<Updates::Gradient> Updates::taken_by(std::uint32_t block, Step& step) {
  std::vector<Gradient> taken;
  if (options_.adds_rounds) return taken;  // each went back when it was added
  const Catalogue& catalogue = store_.catalogue();
  for (const UseRecord& use : catalogue.uses_of_block(block)) {
    const auto index = static_cast<std::uint32_t>(&use - catalogue.uses().data());
    taken.push_back({index, step.taken_after[index], step.checksums[index]});
  }
  return taken;
}

bool Updates::give_back(std::span<const Gradient> gradients) {
  try {
    for (const Gradient& gradient : gradients) check_gradient(store_, gradient.use, gradient.checksum);
  } catch (const Error&) {
    options_.report_failure(std::current_exception());  // comes back as stop()
    return false;
  }
  for (const Gradient& gradient : gradients) store_.taken(gradient.use).publish(gradient.taken_after);
  return true;
}

void Updates::update() {
  const std::uint64_t version = steps_.begin()->first;
  Step& step = steps_.begin()->second;
  if (is_barrier(step) && !step.norm_done) {
    finish_norms_of_blocks(version, step);
    loss_scaler_.publish(version, step.outcome->skipped);
  }
  if (blocks_.empty()) {
    end_step(version, step);
  } else if (step.request.function) {
    update_by_function(version, step);
  } else {
    update_one_block(version, step);
  }
}

void Updates::update_one_block(std::uint64_t version, Step& step) {
  const std::uint32_t block = *step.ready.begin();
  step.ready.erase(step.ready.begin());
  const std::vector<UpdateSpan> rules = step.outcome->skipped ? std::vector<UpdateSpan>() : rules_of(block, step);
  const bool needs_sum = !step.norm_done && (options_.adds_rounds || store_.catalogue().blocks()[block].num_uses > 1);
  const auto taken = taken_by(block, step);
  mutex_.unlock();
  const std::int64_t since = trace_begin();
  const double sum = needs_sum ? updater_->square_sum(block) : 0;
  stamps_.begin(block, version);
  updater_->update(block, version, rules);
  trace_end(TraceKind::kUpdate, version, block, since);
  stamps_.complete(block, version);
  store_.published(block).publish(version);
  const bool is_sound = give_back(taken);
  mutex_.lock();
  if (!is_sound) return;
  if (needs_sum) step.square_sums[block] = sum;
  if (++step.num_applied == blocks_.size()) end_step(version, step);
}

void Updates::update_by_function(std::uint64_t version, Step& step) {
  UpdateStep scaling;
  set_scaling(scaling, step);
  const WholeUpdate& function = step.request.function;
  const bool skipped = step.outcome->skipped;
  std::vector<Gradient> taken;
  for (const std::uint32_t block : blocks_) {
    for (const Gradient& gradient : taken_by(block, step)) taken.push_back(gradient);
  }
  mutex_.unlock();
  const auto write = [&](std::uint32_t block, float* gradient) { updater_->write_gradient(block, scaling, gradient); };
  for (const std::uint32_t block : blocks_) stamps_.begin(block, version);
  std::exception_ptr error;
  const std::int64_t since = trace_begin();
  try {
    function(version, skipped, write);
  } catch (...) {
    error = std::current_exception();
  }
  if (error) {
    options_.report_failure(error);  // comes back as stop()
    mutex_.lock();
    return;
  }
  if (options_.trace != nullptr) options_.trace->function(version, since);
  for (const std::uint32_t block : blocks_) {
    stamps_.complete(block, version);
    store_.published(block).publish(version);
  }
  const bool is_sound = give_back(taken);
  mutex_.lock();
  if (!is_sound) return;
  end_step(version, step);
}

void Updates::end_step(std::uint64_t version, Step& step) {
  if (!step.norm_done) finish_norm(step);
  if (!step.outcome->skipped) ++num_applied_;
  version_ = version;
  steps_.erase(steps_.begin());
  changed_.notify_all();
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
