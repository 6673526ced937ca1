#include "pipeline/runtime.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/run_depth.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "coordinator/run_plans/layer_memories.h"
#include "coordinator/simulated_steps.h"
#include "device/cpu_device.h"
#include "hoststore/memory/memory_limit.h"
#include "pipeline/description/description.h"
#include "pipeline/description/initial_weights.h"
#include "pipeline/description/tensors.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/torch_worker/cpu_tensor_memory.h"
#include "pipeline/torch_worker/cpu_torch_device.h"
#include "pipeline/torch_worker/torch_stage_executor.h"
#include "roundpipe/error.h"
#include "scheduler/gpu_memory.h"
#include "worker/worker.h"

namespace rp {

namespace {

Plan read_plan_file(const std::string& path, int num_layers) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw Error(ExitCode::kUsage,
                cat("cannot read the plan file ", path,
                    "; --plan takes `auto` or a file such as `forward 0-3 | fused 4-7 | backward 0-3`"));
  }
  try {
    return parse_plan(text.str(), num_layers);
  } catch (const Error& error) {
    throw Error(error.code(), cat(path, ": ", error.what()));
  }
}

// Calls leave_to_process_end() when the worker ends, by return or by exception, if its process ends
// with it.
struct ProcessEnd {
  Device& device;
  ServeEnd end;
  ~ProcessEnd() {
    if (end == ServeEnd::kEndOfProcess) device.leave_to_process_end();
  }
};

}  // namespace

int Runtime::add(Pipeline::Impl* pipeline) {
  pipelines_.push_back(pipeline);
  return static_cast<int>(pipelines_.size()) - 1;
}

bool Runtime::has(const Pipeline::Impl* pipeline) const {
  return std::find(pipelines_.begin(), pipelines_.end(), pipeline) != pipelines_.end();
}

// Starting the coordinator

std::uint64_t Runtime::fingerprint_of_all() const {
  std::uint64_t hash = 0;
  for (const Pipeline::Impl* pipeline : pipelines_) {
    hash = hash * 1099511628211ULL + fingerprint(pipeline->model(), pipeline->losses());
  }
  return hash;
}

EmulatedRun* Runtime::emulated_run() {
  if (!EmulatedRun::is_for(*settings_.device)) return nullptr;
  if (!emulated_run_) {
    std::vector<const Model*> models;
    for (const Pipeline::Impl* pipeline : pipelines_) models.push_back(&pipeline->model());
    emulated_run_ = std::make_unique<EmulatedRun>(*settings_.device, models, num_workers_);
    if (*settings_.check_consistency) {
      throw Error(ExitCode::kUsage, cat("--check-consistency looks at data, and --device ", *settings_.device,
                                        " has none; leave one out"));
    }
  }
  return emulated_run_.get();
}

void Runtime::check_presets() const {
  for (const Pipeline::Impl* pipeline : pipelines_) {
    const LayerSpec& layer = pipeline->model().layers().front();
    if (!layer.cost) continue;
    throw Error(ExitCode::kUsage,
                cat(layer.name,
                    ": an emulated layer has shapes and no weights, so it runs on an emulated device only, as --device "
                    "sim:rtx4090; to train on this machine give a model's directory"));
  }
}

void Runtime::refuse_on_sim(const char* what) const {
  if (!EmulatedRun::is_for(*settings_.device)) return;
  throw Error(ExitCode::kUsage,
              cat(what, ": a run on --device ", *settings_.device, " has no weights; leave it out there"));
}

void Runtime::report_sim_run() {
  if (!emulated_run_ || !store_) return;
  std::fputs(emulated_run_->report(*schedules_.front(), *store_, pipelines_.front()->options().asynchronous).c_str(),
             stderr);
}

StepTimes Runtime::step_times(int pipeline) {
  const auto index = static_cast<std::size_t>(pipeline);
  return compare_steps(*schedules_[index], coordinator().layer_times(pipeline),
                       {.num_workers = num_workers_,
                        .asynchronous = pipelines_[index]->options().asynchronous,
                        .first_trained_layer = store_->catalogue().first_trained_layer(pipeline)});
}

void Runtime::create_store(const std::function<void(const LoadProgress&)>& tell) {
  StoreSettings settings;
  settings.backing = settings_.store.value_or("");
  settings.params_on = settings_.params_on.value_or("");
  settings.num_workers = static_cast<std::uint32_t>(num_workers_);
  settings.stage_buffers = *settings_.prefetch ? kStageBuffers : 1;
  settings.threads_per_worker = static_cast<std::uint32_t>(*settings_.threads_per_worker);
  settings.fingerprint = fingerprint_of_all();
  settings.build_id = build_id();
  settings.arena_limit_bytes = available_memory();
  settings.wait_timeout_ns = *settings_.wait_timeout_seconds * kNsPerSecond;
  settings.weights_yield = settings_.yield_to_activations == "all" || settings_.yield_to_activations == "weights";
  settings.gradients_yield = settings_.yield_to_activations == "all" || settings_.yield_to_activations == "gradients";
  settings.check_consistency = *settings_.check_consistency;
  if (const EmulatedRun* run = emulated_run()) {
    settings.is_sparse = true;
    settings.emulated_memory_bytes = run->machine().host_memory_bytes;
    const std::uint64_t limit = run->machine().host_memory_bytes;
    settings.arena_limit_bytes = limit > 0 ? limit : StoreSettings().arena_limit_bytes;
  } else {
    check_presets();
  }
  std::vector<PipelineRequest> requests;
  for (const Pipeline::Impl* pipeline : pipelines_) requests.push_back(pipeline->request());
  const Catalogue catalogue = Catalogue::lay_out(requests);
  store_ = Store::create(settings, catalogue);
  store_->populate_ahead(population_threads(usable_cores()));  // runs while weights are loaded and workers start
  for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i)
    warn_of_plan(i, plan_settings(i));  // reports wrong plans before any worker starts
  write_weights(catalogue, tell);
  if (!settings_.store && store_->backing() == Backing::kMemfd && !settings.is_sparse &&
      !store_->placement().has_huge_pages) {
    const StoreBytes needed = Store::needed(settings, catalogue);
    const std::uint64_t in_memory = !settings_.params_on ? needed.total() : needed.control;
    std::fprintf(stderr, "roundpipe: /dev/shm is too small for the host store (%s): using memfd instead\n",
                 bytes_text(in_memory).c_str());
  }
}

void Runtime::write_weights(const Catalogue& catalogue, const std::function<void(const LoadProgress&)>& tell) {
  LoadProgress progress{.num_loaded = 0, .num_layers = catalogue.num_layers()};
  const auto on_layer = [&] {
    ++progress.num_loaded;
    if (tell) tell(progress);
  };
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    initial_buffers_.emplace_back();
    buffer_names_.emplace_back();
    if (emulated_run()) continue;  // the weights of an emulated run are never read
    for (const auto& [layer, buffers] :
         write_initial_weights(pipelines_[i]->model(), catalogue.pipelines()[i], *store_, on_layer)) {
      for (const NamedBuffer& buffer : buffers) {
        initial_buffers_.back()[layer].push_back(buffer.value);
        buffer_names_.back()[layer].push_back(buffer.name);
      }
    }
  }
}

std::uint64_t Runtime::max_stage_bytes() const {
  // A worker holds the weights of two stages, and gradients in fp32 and in the working dtype: about
  // six times a stage.
  if (emulated_run_ && emulated_run_->machine().memory_bytes > 0) return emulated_run_->machine().memory_bytes / 12;
  if (emulated_run_ || is_on_gpus()) return UINT64_MAX;  // plans for GPUs are based on measured memory
  return available_memory() / (12 * static_cast<std::uint64_t>(num_workers_));
}

// With the grain of a layer, no layer's last product is recomputed (roundpipe/recompute.h). This
// costs copies of all layers' inputs, which are negligible if the device's memory is that of the
// host.
RecomputeGrain Runtime::recompute_grain(const PipelineOptions& options) const {
  return options.recompute_grain.value_or(settings_.device == "cpu" ? RecomputeGrain::kLayer : RecomputeGrain::kStage);
}

PlanSettings Runtime::plan_settings(int pipeline) const {
  const PipelineRecord& record = store_->catalogue().pipelines()[pipeline];
  const int num_layers = static_cast<int>(record.num_layers);
  const Pipeline::Impl& description = *pipelines_[pipeline];
  PlanSettings settings{.by_hand = {}, .limits = description.options().plan_limits};
  // Limits on balanced plans mean that the user wants balanced plans, so there is no search.
  if (settings.limits.min_stages == 0 && settings.limits.threshold == 0) {
    settings.search = {.num_workers = num_workers_,
                       .num_microbatches = description.options().num_microbatches,
                       .asynchronous = description.options().asynchronous,
                       .rounds_per_step = description.options().rounds_per_step};
  }
  if (settings.limits.min_stages == 0) settings.limits.min_stages = num_workers_;
  if (settings.limits.max_stage_bytes == 0) settings.limits.max_stage_bytes = max_stage_bytes();
  settings.fits_device = is_on_gpus();
  settings.recompute = recompute_grain(description.options());
  if (description.losses().empty()) settings.first_kind = PlanKind::kInfer;
  if (!description.options().plan.empty()) {
    settings.by_hand = parse_plan(description.options().plan, num_layers);
  } else if (settings_.plan != "auto") {
    if (pipelines_.size() > 1) {
      throw Error(ExitCode::kUsage, cat("--plan ", *settings_.plan, ": the session has ", pipelines_.size(),
                                        " pipelines, and a file gives the plan of one; leave it out"));
    }
    settings.by_hand = read_plan_file(*settings_.plan, num_layers);
  }
  for (const LayerSpec& layer : description.model().layers()) settings.forward_costs.push_back(layer.forward_cost);
  return settings;
}

// Activations need more memory in addition, which is not known yet.
void Runtime::warn_of_plan(int pipeline, const PlanSettings& settings) const {
  const std::uint64_t limit = bytes_of(settings_.gpu_memory.value_or("")).value_or(gpu_.bytes);
  if (!settings.by_hand || !is_on_gpus() || limit == 0) return;
  const LayerMemories memories(store_->catalogue(), pipeline);
  const auto text = too_large_text(memories.costs(), *settings.by_hand, limit, settings.recompute);
  if (text) std::fprintf(stderr, "roundpipe: %s\n", text->c_str());
}

void Runtime::start_coordinator(std::optional<FaultBoardEntry> board, std::function<void()> on_hang,
                                TraceJournal* trace) {
  CoordinatorOptions options;
  options.board = board;
  options.on_hang = std::move(on_hang);
  options.trace = trace;
  options.optimizer_threads = optimizer_threads(usable_cores(), is_on_gpus() ? num_workers_ : 0);
  if (const EmulatedRun* run = emulated_run()) options.emulated_memory = run->host_memory();
  options.on_commit = [this](const CommittedTask& task) { schedules_[task.round.traits.pipeline]->add(task); };
  for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i) {
    const PipelineOptions& pipeline = pipelines_[i]->options();
    schedules_.push_back(std::make_unique<ScheduleReport>(num_workers_));
    options.pipelines.push_back({.adds_rounds = pipeline.rounds_per_step > 1,
                                 .asynchronous = pipeline.asynchronous,
                                 .plan = plan_settings(i),
                                 .loss_scaling = pipeline.loss_scaling});
  }
  coordinator_ = std::make_unique<Coordinator>(*store_, options);
  for (std::size_t i = 0; i < initial_buffers_.size(); ++i) {
    std::map<int, BlockContents> buffers;
    for (auto& [layer, values] : initial_buffers_[i]) buffers[layer] = {.tensors = views_of(values)};
    coordinator_->set_buffers(static_cast<int>(i), buffers);
  }
  initial_buffers_.clear();
}

void Runtime::give_up_saves() {
  for (Pipeline::Impl* pipeline : pipelines_) pipeline->give_up_save();
}

void Runtime::end_coordinator() {
  for (Pipeline::Impl* pipeline : pipelines_) pipeline->stop_save();
  coordinator_.reset();
  if (store_) store_->epoch().publish(kEndEpoch.value());  // without a coordinator, too: a worker may have attached
}

// In a worker

void Runtime::compare_with(const Store& store) const {
  if (store.header().build_id != build_id()) {
    throw Error(ExitCode::kUserError,
                "the processes differ: the program's file was replaced between the start of the coordinator and of "
                "this worker; start the run again");
  }
  const std::vector<PipelineRecord>& records = store.catalogue().pipelines();
  if (records.size() != pipelines_.size()) {
    throw Error(ExitCode::kUserError, cat("the processes differ: the coordinator has ", records.size(),
                                          " pipelines, this worker ", pipelines_.size()));
  }
  for (std::size_t i = 0; i < records.size(); ++i)
    compare_layers(pipelines_[i]->model(), store.catalogue(), records[i]);
  if (store.header().fingerprint != fingerprint_of_all()) {
    throw Error(
        ExitCode::kUserError,
        "the processes differ: losses, tied parameters or dtype in this worker are not those of the coordinator");
  }
}

void Runtime::serve(Store& store, int worker, std::optional<FaultBoardEntry> board, TraceJournal* trace, ServeEnd end) {
  if (const EmulatedRun* run = emulated_run()) return run->serve(store, worker, board, trace);
  if (settings_.device != "cpu") {
    const std::unique_ptr<PluginDevice> device =
        load_device_plugin(*settings_.device).make(plugin_settings(store, worker));
    const ProcessEnd leave{device->device(), end};
    return serve_on(device->device(), device->torch_device(), device->profiler(), store, worker, board, trace);
  }
  std::uint64_t max_elements = 0;
  for (const WeightGroupRecord& group : store.catalogue().weight_groups())
    max_elements = std::max(max_elements, group.num_elements);
  if (store_ == nullptr) store.populate_ahead(1);  // the worker has its own process
  const std::shared_ptr<CpuMemory> memory = install_cpu_tensor_memory();
  CpuDevice device(memory);
  CpuTorchDevice torch_device(memory, static_cast<int>(store.header().threads_per_worker), max_elements);
  serve_on(device, torch_device, nullptr, store, worker, board, trace);
}

PluginSettings Runtime::plugin_settings(Store& store, int worker) const {
  std::uint64_t host_bytes = 0;
  for (const Store::Region& region : store.regions()) host_bytes += region.bytes;
  return {.gpu = gpu_.uuid,
          .memory_bytes = bytes_of(settings_.gpu_memory.value_or("")).value_or(0),
          .num_sharers = gpu_.num_sharers,
          .host_bytes = host_bytes,
          .signals = *settings_.signals,
          .allows_nondeterminism = *settings_.allow_nondeterminism,
          .fp16_accumulation = *settings_.fp16_accumulation,
          .warn = [worker](const std::string& text) {
            std::fprintf(stderr, "roundpipe: worker %d: %s\n", worker, text.c_str());
          }};
}

void Runtime::serve_on(Device& device, TorchDevice& torch_device, ProfilerRanges* profiler, Store& store, int worker,
                       std::optional<FaultBoardEntry> board, TraceJournal* trace) const {
  TaskRanges ranges(profiler);
  SequenceWord& heartbeat = store.worker_words(worker).heartbeat;
  auto report_layer = [board, &heartbeat, &ranges](int layer, int microbatch) mutable {
    ranges.layer(layer);
    heartbeat.publish_quietly(heartbeat.observe() + 1);
    if (!board) return;
    board->publish_heartbeat();
    board->publish_position(layer, microbatch);
  };
  std::vector<PipelineCode> code;
  for (const Pipeline::Impl* pipeline : pipelines_) code.push_back({&pipeline->model(), &pipeline->losses()});
  TorchStageExecutor executor(code, store.catalogue(), torch_device,
                              {.num_threads = static_cast<int>(store.header().threads_per_worker),
                               .warms_up = settings_.warm_up.value_or(is_on_gpus())},
                              std::move(report_layer));
  Worker(store, worker, device, executor, board, trace, &ranges).serve();
}

void Runtime::check_room_for_gradients(int pipeline) {
  const int most = pipelines_[pipeline]->options().rounds_per_step;
  if (coordinator().rounds_since_step(pipeline) < most) return;
  throw Error(ExitCode::kUsage, cat("rounds_per_step is ", most, ": call step() before round ", most + 1));
}

Coordinator& Runtime::coordinator() {
  if (!coordinator_) {
    throw Error(ExitCode::kUsage, "call Session::start() first: before it a pipeline is only described");
  }
  return *coordinator_;
}

}  // namespace rp
