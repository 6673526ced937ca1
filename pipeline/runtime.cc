#include "pipeline/runtime.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "common/bad_input.h"
#include "common/network_profile.h"
#include "common/run_depth.h"
#include "common/system/host_name.h"
#include "common/system/kernel_file.h"
#include "common/system/processor.h"
#include "common/system/usable_cores.h"
#include "common/text.h"
#include "coordinator/run_plans/layer_memories.h"
#include "coordinator/simulated_steps.h"
#include "coordinator/updates/memory_group_updater.h"
#include "hoststore/memory/memory_limit.h"
#include "hoststore/task_file/task_file.h"
#include "nodes/comparison.h"
#include "pipeline/description/description.h"
#include "pipeline/description/initial_weights.h"
#include "pipeline/description/tensors.h"
#include "pipeline/pipeline_impl.h"
#include "roundpipe/error.h"
#include "scheduler/gpu_memory.h"
#include "scheduler/simulation/predicted_machine.h"

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

std::vector<PipelineCode> Runtime::pipeline_code() const {
  std::vector<PipelineCode> code;
  for (const Pipeline::Impl* pipeline : pipelines_) code.push_back({&pipeline->model(), &pipeline->losses()});
  return code;
}

void Runtime::check_has_weights(const char* what) const {
  if (backend_->has_weights()) return;
  throw Error(ExitCode::kUsage,
              cat(what, ": a run on --device ", *settings_.device, " has no weights; leave it out there"));
}

void Runtime::report_run() const {
  std::fputs(backend_->report(*schedules_.front(), *store_, step_settings(0)).c_str(), stderr);
}

StepSettings Runtime::step_settings(int pipeline) const {
  const PipelineOptions& options = pipelines_[static_cast<std::size_t>(pipeline)]->options();
  StepSettings settings{.num_workers = num_workers_,
                        .asynchronous = options.asynchronous,
                        .first_trained_layer = store_->catalogue().first_trained_layer(pipeline),
                        .layers = moved_bytes(store_->catalogue(), pipeline)};
  if (network_ != nullptr && settings_.network)
    settings.nodes = predicted_nodes(*network_of(*settings_.network), place().num_nodes, options.rounds_per_step);
  return settings;
}

StepTimes Runtime::step_times(int pipeline) {
  return compare_steps(*schedules_[static_cast<std::size_t>(pipeline)], coordinator().layer_times(pipeline),
                       step_settings(pipeline));
}

void Runtime::record_steps(std::optional<StoreRemains> remains) {
  if (!backend_->has_weights()) return;
  records_steps_ = true;
  is_restarted_ = remains.has_value();
  remains_ = std::move(remains);
}

void Runtime::recover() {
  for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i) {
    if (!is_restarted_) {
      coordinator_->finish_restart(i, "");
      continue;
    }
    const int num_left = coordinator_->recover(i);
    if (num_left == 0) continue;
    std::fprintf(
        stderr,
        "roundpipe: step %llu was being applied when the coordinator died; the updates that were left are made\n",
        static_cast<unsigned long long>(coordinator_->pipeline_state(i).num_steps));
  }
}

StoreSettings Runtime::store_settings() const {
  StoreSettings settings;
  settings.backing = settings_.store.value_or("");
  settings.params_on = settings_.params_on.value_or("");
  settings.num_workers = static_cast<std::uint32_t>(num_workers_);
  settings.stage_buffers = *settings_.prefetch ? kStageBuffers : 1;
  settings.threads_per_worker = static_cast<std::uint32_t>(*settings_.threads_per_worker);
  settings.fingerprint = fingerprint_of_all();
  settings.build_id = build_id();
  settings.arena_limit_bytes =
      available_memory() + (remains_ ? remains_->allocated_bytes() : 0);  // as at the first start
  settings.wait_timeout_ns = settings_.wait_timeout_seconds.value_or(kDefaultWaitTimeoutSeconds) * kNsPerSecond;
  settings.weights_yield = settings_.yield_to_activations == "all" || settings_.yield_to_activations == "weights";
  settings.gradients_yield = settings_.yield_to_activations == "all" || settings_.yield_to_activations == "gradients";
  settings.check_consistency = *settings_.check_consistency;
  return settings;
}

Catalogue Runtime::lay_out() const {
  std::vector<PipelineRequest> requests;
  for (const Pipeline::Impl* pipeline : pipelines_) requests.push_back(pipeline->request());
  const bool exchanges_on_gpus = place().num_nodes > 1 && *settings_.reduce == "nccl";
  return Catalogue::lay_out(requests, place(), exchanges_on_gpus ? Reduce::kNccl : Reduce::kMpi);
}

void Runtime::compare_with_nodes() {
  const int num_nodes = place().num_nodes;
  if (num_nodes == 1) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::kUsage, cat("a run on ", num_nodes, " nodes: ", what));
  };
  NodeDescription own{.host = host_name(), .num_workers = num_workers_};
  own.same = {{"the program's build", build_contents()},
              {"the fingerprint of layers, losses and dtypes", cat(fingerprint_of_all())},
              {"--device", *settings_.device},
              {"--reduce", *settings_.reduce},
              {"the processor's instructions", instructions_of(kernel_file_text("/proc/cpuinfo"))},
              {"--threads-per-worker", cat(*settings_.threads_per_worker)},
              {"--allow-nondeterminism", *settings_.allow_nondeterminism ? "on" : "off"},
              {"--fp16-accumulation", *settings_.fp16_accumulation ? "on" : "off"}};
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    const PipelineOptions& options = pipelines_[i]->options();
    if (options.rounds_per_step < num_nodes) {
      refuse(cat("rounds_per_step is ", options.rounds_per_step,
                 ", but the nodes share the rounds of a step; set it to ", num_nodes, " or more"));
    }
    if (*settings_.reduce == "nccl" && options.rounds_per_step % num_nodes != 0) {
      refuse(cat("--reduce nccl and rounds_per_step ", options.rounds_per_step,
                 ": it must be a multiple of the number of nodes; or use --reduce mpi"));
    }
    if (options.optimizer_dtype != at::kFloat)
      refuse(cat("optimizer_dtype is ", at::toString(options.optimizer_dtype), "; set it to at::kFloat"));
    const auto add = [&](const char* name, const std::string& value) {
      own.same.emplace_back(cat(name, " of pipeline ", i), value);
    };
    add("num_microbatches", cat(options.num_microbatches));
    add("rounds_per_step", cat(options.rounds_per_step));
    add("asynchronous", options.asynchronous ? "true" : "false");
    add("seed", cat(options.seed));
    add("num_moments", cat(options.num_moments));
  }
  if (*settings_.reduce == "nccl") {
    if (*settings_.device != "cuda")
      refuse(cat("--reduce nccl is for NVIDIA GPUs, and the device is ", *settings_.device, "; use --reduce mpi"));
    own.same.emplace_back("the number of workers, with --reduce nccl", cat(num_workers_));
    for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i) {
      const std::optional<Plan> plan = plan_by_hand(i);
      own.same.emplace_back(cat("the plan of pipeline ", i, ", with --reduce nccl"),
                            plan ? plan_text(*plan, pipelines_[i]->model().num_layers()) : "auto");
    }
  }
  workers_of_nodes_ = compare_nodes(*network_, own);
}

void Runtime::wait_for_nodes() {
  if (store_->catalogue().workers_exchange())
    (void)compare_nodes(*network_, {.host = host_name(), .num_workers = num_workers_});
}

Command Runtime::create_task_store(const std::filesystem::path& file) {
  const TaskFileInfo info = read_task_info(file);
  backend_->set_pipelines(pipeline_code());
  StoreSettings settings = store_settings();
  if (info.fingerprint != settings.fingerprint) {
    throw bad_input(file, "the program has other layers, losses or dtypes than at the time of this task (", info.task,
                    "); was it started with other arguments, or is the model another one?");
  }
  settings.is_sparse = true;           // most of the weights are not there
  settings.check_consistency = false;  // the file contains no checksums
  store_ = Store::create(settings, lay_out());
  return load_task(file, *store_);
}

void Runtime::create_store(const std::function<void(const LoadProgress&)>& tell) {
  backend_->set_pipelines(pipeline_code());
  compare_with_nodes();
  StoreSettings settings = store_settings();
  backend_->complete_store(settings);
  const Catalogue catalogue = lay_out();
  if (records_steps_) {
    for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i)
      settings.journal_scratch_bytes.push_back(
          MemoryGroupUpdater::journal_bytes(catalogue, catalogue.trained_groups(i)));
  }
  store_ =
      is_restarted_ ? Store::create(settings, catalogue, std::move(*remains_)) : Store::create(settings, catalogue);
  remains_.reset();
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
    if (!backend_->has_weights()) continue;
    const auto written =
        is_restarted_ ? initial_buffers(pipelines_[i]->model(), catalogue.pipelines()[i])
                      : write_initial_weights(pipelines_[i]->model(), catalogue.pipelines()[i], *store_, on_layer);
    for (const auto& [layer, buffers] : written) {
      for (const NamedBuffer& buffer : buffers) {
        initial_buffers_.back()[layer].push_back(buffer.value);
        buffer_names_.back()[layer].push_back(buffer.name);
      }
    }
    if (place().num_nodes > 1 && !written.empty()) {
      const auto& [layer, buffers] = *written.begin();
      throw Error(
          ExitCode::kUsage,
          cat("a run on ", place().num_nodes, " nodes: layer ", layer, " has the buffer '", buffers.front().name,
              "', which the nodes would change differently; use layers without buffers, or one node"));
    }
  }
}

std::vector<int> Runtime::nodes_of_rounds(int pipeline) const {
  const int num_rounds = pipelines_[static_cast<std::size_t>(pipeline)]->options().rounds_per_step;
  if (network_ == nullptr) return std::vector<int>(static_cast<std::size_t>(num_rounds), 0);
  return deal_rounds(num_rounds, workers_of_nodes_);
}

std::optional<Plan> Runtime::plan_by_hand(int pipeline) const {
  const Pipeline::Impl& description = *pipelines_[pipeline];
  const int num_layers = description.model().num_layers();
  if (!description.options().plan.empty()) return parse_plan(description.options().plan, num_layers);
  if (settings_.plan == "auto") return std::nullopt;
  if (pipelines_.size() > 1) {
    throw Error(ExitCode::kUsage, cat("--plan ", *settings_.plan, ": the session has ", pipelines_.size(),
                                      " pipelines, and a file gives the plan of one; leave it out"));
  }
  return read_plan_file(*settings_.plan, num_layers);
}

PlanSettings Runtime::plan_settings(int pipeline) const {
  const Pipeline::Impl& description = *pipelines_[pipeline];
  PlanSettings settings{.by_hand = plan_by_hand(pipeline), .limits = description.options().plan_limits};
  // Limits on balanced plans mean that the user wants balanced plans, so there is no search.
  if (settings.limits.min_stages == 0 && settings.limits.threshold == 0) {
    const StepSettings step = step_settings(pipeline);
    settings.search = {.num_workers = num_workers_,
                       .num_microbatches = description.options().num_microbatches,
                       .asynchronous = description.options().asynchronous,
                       .rounds_per_step = static_cast<int>(std::ranges::count(nodes_of_rounds(pipeline), place().node)),
                       .network = plan_network(step.layers, step.nodes)};
  }
  if (settings.limits.min_stages == 0) settings.limits.min_stages = num_workers_;
  backend_->complete_plan(settings);
  settings.recompute = recompute_grain(description.options());
  if (description.losses().empty()) settings.first_kind = PlanKind::kInfer;
  for (const LayerSpec& layer : description.model().layers()) settings.forward_costs.push_back(layer.forward_cost);
  return settings;
}

// Activations need more memory in addition, which is not known yet.
void Runtime::warn_of_plan(int pipeline, const PlanSettings& settings) const {
  const std::uint64_t limit = backend_->gpu_bytes();
  if (!settings.by_hand || limit == 0) return;
  const LayerMemories memories(store_->catalogue(), pipeline);
  const auto text = too_large_text(memories.costs(), *settings.by_hand, limit, settings.recompute);
  if (text) std::fprintf(stderr, "roundpipe: %s\n", text->c_str());
}

void Runtime::start_coordinator(std::optional<FaultBoardEntry> board, std::function<void()> on_hang,
                                OnSetAside on_set_aside, TraceJournal* trace) {
  CoordinatorOptions options;
  options.board = board;
  options.on_hang = std::move(on_hang);
  options.on_set_aside = std::move(on_set_aside);
  options.trace = trace;
  options.network = network_;
  backend_->complete_coordinator(options);
  options.on_commit = [this](const CommittedTask& task) { schedules_[task.round.traits.pipeline]->add(task); };
  for (int i = 0; i < static_cast<int>(pipelines_.size()); ++i) {
    const PipelineOptions& pipeline = pipelines_[i]->options();
    schedules_.push_back(std::make_unique<ScheduleReport>(num_workers_));
    options.pipelines.push_back({.adds_rounds = pipeline.rounds_per_step > 1,
                                 .asynchronous = pipeline.asynchronous,
                                 .plan = plan_settings(i),
                                 .loss_scaling = pipeline.loss_scaling,
                                 .nodes_of_rounds = nodes_of_rounds(i)});
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
  if (store_) store_->epoch().publish_wanted(kEndEpoch);  // without a coordinator, too: a worker may have attached
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

void Runtime::serve(const WorkerSeat& seat) {
  if (seat.has_own_process) backend_->set_pipelines(pipeline_code());
  backend_->serve(seat);
}

void Runtime::check_room_for_gradients(int pipeline) {
  const int most = pipelines_[pipeline]->options().rounds_per_step;
  if (coordinator().pipeline_state(pipeline).rounds_since_step < most) return;
  throw Error(ExitCode::kUsage, cat("rounds_per_step is ", most, ": call step() before round ", most + 1));
}

Coordinator& Runtime::coordinator() {
  if (!coordinator_) {
    throw Error(ExitCode::kUsage, "call Session::start() first: before it a pipeline is only described");
  }
  return *coordinator_;
}

}  // namespace rp
