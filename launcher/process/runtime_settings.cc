#include "launcher/process/runtime_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "common/network_profile.h"
#include "common/text.h"
#include "common/time_text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

constexpr int kMaxThreadsPerWorker = 1024;

std::string parse_memory(const std::string& name, const std::string& value) {
  if (bytes_of(value)) return value;
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: a size, as 24G or 512M"));
}

std::string parse_directory(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: a directory"));
  return value;
}

std::string parse_plan(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: auto or a file"));
  return value;
}

std::string parse_network(const std::string& name, const std::string& value) {
  if (network_of(value)) return value;
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: ", kNetworkWords));
}

std::string parse_gpu_profile(const std::string& name, const std::string& value) {
  if (value.empty()) {
    throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: the name of a GPU's profile, as rtx4090, or a file"));
  }
  return value;
}

// Returns the value of a setting as its option and its variable accept it; nothing if it was not given.
std::optional<std::string> text_of(const RuntimeSettings& settings, const RuntimeSetting& setting) {
  if (const auto* text = std::get_if<TextSetting>(&setting.kind)) return settings.*(text->field);
  if (const auto* choice = std::get_if<ChoiceSetting>(&setting.kind)) return settings.*(choice->field);
  if (const auto* number = std::get_if<NumberSetting>(&setting.kind)) {
    const std::optional<int> value = settings.*(number->field);
    return value ? std::optional(std::to_string(*value)) : std::nullopt;
  }
  const std::optional<bool> value = settings.*(std::get<SwitchSetting>(setting.kind).field);
  return value ? std::optional<std::string>(*value ? "1" : "0") : std::nullopt;
}

}  // namespace

std::string parse_choice(const std::string& name, const std::string& value, const std::vector<std::string>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return value;
  throw Error(ExitCode::kUsage,
              cat(name, " is \"", value, "\"", did_you_mean(value, allowed), "; allowed: ", joined(allowed)));
}

std::string parse_device(const std::string& name, const std::string& value) {
  if (value == "gpu" || value == "gpus" || value.starts_with("cuda:")) {
    throw Error(ExitCode::kUsage,
                cat(name, " is \"", value, "\"; GPUs are chosen by --gpus: --gpus all, --gpus 4 or --gpus 0,2"));
  }
  constexpr std::string_view kEmulated = "sim:";
  if (value.starts_with(kEmulated)) {
    if (value.size() > kEmulated.size()) return value;  // the program checks the name
    throw Error(
        ExitCode::kUsage,
        cat(name, " is \"", value,
            "\"; give the name of a GPU's profile behind it, such as sim:rtx4090, or a file: docs/emulated-device.md"));
  }
  return parse_choice(name, value, {"cpu", "cuda", "sim:NAME"});
}

std::string parse_file(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: a file"));
  return value;
}

bool parse_switch(const std::string& name, const std::string& value) {
  if (value == "0" || value == "1") return value == "1";
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: 0 or 1"));
}

int parse_count(const std::string& name, const std::string& value, int least, int most, const char* advice) {
  int number = 0;
  const char* end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, number);
  if (result.ec == std::errc{} && result.ptr == end && number >= least && number <= most) return number;
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: a number from ", least, " to ", most, advice));
}

std::int64_t parse_seconds(const std::string& name, const std::string& value) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (const auto seconds = seconds_of(value, kMost)) return *seconds;
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: a time as 90s, 15m or 2h"));
}

std::optional<std::string> environment_value(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

const std::vector<RuntimeSetting>& runtime_settings() {
  using S = RuntimeSettings;
  static const std::vector<RuntimeSetting> settings = {
      {.option = "device",
       .argument = "cpu|cuda|sim:NAME",
       .variable = "RP_DEVICE",
       .field_name = "device",
       .default_value = "cpu",
       .concerns = "workers",
       .help = "Device of the workers; cuda: all GPUs, or as many as --workers says; sim:NAME computes nothing and "
               "takes the time of a GPU",
       .details = "Device of the workers; `cuda`: all GPUs, or as many as `--workers` says; `sim:` computes nothing "
                  "and takes a GPU's time: [emulated-device.md](emulated-device.md)",
       .kind = TextSetting{&S::device, parse_device}},
      {.option = "signals",
       .argument = "memops|events",
       .variable = "RP_SIGNALS",
       .field_name = "signals",
       .default_value = "memops",
       .concerns = "workers on GPUs",
       .help = "How the GPUs of different workers wait for each other",
       .details = "How GPUs of different workers wait for each other: see [GPUs](#gpus)",
       .kind = ChoiceSetting{&S::signals, {"memops", "events"}}},
      {.option = "gpu-memory",
       .argument = "SIZE",
       .variable = "RP_GPU_MEMORY",
       .field_name = "gpu_memory",
       .default_text = "what is free",
       .concerns = "workers on GPUs",
       .help = "How much of its GPU's memory a worker takes at its start, as 24G; it never takes more",
       .details = "How much of its GPU's memory a worker takes at its start, as `24G`; it never takes more. By default "
                  "the free memory, except 1 GiB and 1/512 of the store's weights and gradients, divided by the number "
                  "of workers on the GPU",
       .kind = TextSetting{&S::gpu_memory, parse_memory}},
      {.option = "allow-nondeterminism",
       .variable = "RP_ALLOW_NONDETERMINISM",
       .field_name = "allow_nondeterminism",
       .default_value = "0",
       .concerns = "workers on GPUs",
       .help = "Let GPUs use kernels whose sums have no fixed order: two runs may then differ in the last bits",
       .kind = SwitchSetting{&S::allow_nondeterminism}},
      {.option = "fp16-accumulation",
       .variable = "RP_FP16_ACCUMULATION",
       .field_name = "fp16_accumulation",
       .default_value = "0",
       .concerns = "workers on GPUs",
       .help = "Let GPUs add up the products of fp16 matrices in fp16: twice as fast on consumer cards, and less exact",
       .kind = SwitchSetting{&S::fp16_accumulation}},
      {.option = "threads-per-worker",
       .argument = "K",
       .variable = "RP_THREADS_PER_WORKER",
       .field_name = "threads_per_worker",
       .default_value = "1",
       .concerns = "workers",
       .help = "CPU threads of each worker, 1 to 1024",
       .details = "CPU threads of a worker, 1 to 1024; also its `OMP_NUM_THREADS`, `MKL_NUM_THREADS`",
       .kind = NumberSetting{&S::threads_per_worker, 1, kMaxThreadsPerWorker}},
      {.option = "store",
       .argument = "shm|memfd",
       .variable = "RP_STORE",
       .field_name = "store",
       .default_text = "shm where it is large enough",
       .concerns = "coordinator",
       .help = "Memory behind the host store",
       .kind = ChoiceSetting{&S::store, {"shm", "memfd"}}},
      {.option = "params-on",
       .argument = "DIR",
       .variable = "RP_PARAMS_ON",
       .field_name = "params_on",
       .default_text = "in memory",
       .concerns = "coordinator",
       .help = "Keep weights, gradients and optimizer state in files in DIR, for models that are larger than memory",
       .details = "Weights, gradients and optimizer state in files in DIR, for what is larger than memory: "
                  "[memory.md](memory.md)",
       .kind = TextSetting{&S::params_on, parse_directory}},
      {.option = "plan",
       .argument = "auto|FILE",
       .variable = "RP_PLAN",
       .field_name = "plan",
       .default_value = "auto",
       .concerns = "coordinator",
       .help = "How layers are cut into stages",
       .kind = TextSetting{&S::plan, parse_plan}},
      {.option = "prefetch",
       .argument = "0|1",
       .variable = "RP_PREFETCH",
       .field_name = "prefetch",
       .default_value = "1",
       .concerns = "workers",
       .help = "Upload the weights of the next stage while one computes",
       .details = "Upload the next stage while one computes",
       .kind = SwitchSetting{&S::prefetch}},
      {.option = "warm-up",
       .argument = "0|1",
       .variable = "RP_WARM_UP",
       .field_name = "warm_up",
       .default_text = "1 on GPUs, else 0",
       .concerns = "workers",
       .help = "Run each kind of layer once before the first step, so that nothing is loaded while GPUs wait for each "
               "other",
       .details = "Run each kind of layer once before the first step, so that nothing is loaded while GPUs wait for "
                  "each other: [design/warm-up.md](design/warm-up.md)",
       .kind = SwitchSetting{&S::warm_up}},
      {.option = "wait-timeout",
       .argument = "SECONDS",
       .variable = "RP_WAIT_TIMEOUT",
       .field_name = "wait_timeout_seconds",
       .default_text = "follows from the run, at most 600",
       .concerns = "all processes",
       .help = "A process hangs when no worker began a layer and no weights were updated for so long; longer than the "
               "longest "
               "layer",
       .details = "A process hangs when no worker began a layer and no weights were updated for so long, 1 to 1000000; "
                  "longer than the longest layer of a microbatch: see [Hangs](#hangs)",
       .kind = NumberSetting{&S::wait_timeout_seconds, 1, kMaxWaitTimeoutSeconds}},
      {.option = "attach-timeout",
       .argument = "SECONDS",
       .variable = "RP_ATTACH_TIMEOUT",
       .field_name = "attach_timeout_seconds",
       .default_value = "120",
       .concerns = "all processes",
       .help =
           "Fail when a worker has not started after so long; longer for programs that do much before Session::start()",
       .details = "How long a worker may take to start, 1 to 1000000: for programs that do much before "
                  "`Session::start()`, slow disks",
       .kind = NumberSetting{&S::attach_timeout_seconds, 1, kMaxWaitTimeoutSeconds}},
      {.option = "node-timeout",
       .argument = "SECONDS",
       .variable = "RP_NODE_TIMEOUT",
       .field_name = "node_timeout_seconds",
       .default_value = "10",
       .concerns = "coordinator",
       .help = "On several nodes: a node is lost when nothing has come from it for so long",
       .details = "A node is lost when nothing has come from it for so long, 1 to 1000000: see [Several "
                  "nodes](several-nodes.md#lost-nodes)",
       .kind = NumberSetting{&S::node_timeout_seconds, 1, kMaxWaitTimeoutSeconds}},
      {.option = "reduce",
       .argument = "mpi|nccl",
       .variable = "RP_REDUCE",
       .field_name = "reduce",
       .default_value = "mpi",
       .concerns = "all processes",
       .help =
           "On several nodes: how gradients reach the nodes that add them, through the coordinators or between GPUs",
       .details = "How gradients reach the nodes that add them: through the coordinators (`mpi`), or between GPUs "
                  "(`nccl`, never run on a card so far): see [Several nodes](several-nodes.md#nccl)",
       .kind = ChoiceSetting{&S::reduce, {"mpi", "nccl"}}},
      {.option = "check-consistency",
       .variable = "RP_CHECK_CONSISTENCY",
       .field_name = "check_consistency",
       .default_value = "0",
       .concerns = "all processes",
       .help = "Verify every upload and gradient by version and checksum (slow; finds errors of the runtime)",
       .details = "Verify by version and checksum what is uploaded and what is added to the weights; a difference is "
                  "an error of the runtime (exit code 1) that says what to report: "
                  "[design/consistency-checker.md](design/consistency-checker.md)",
       .kind = SwitchSetting{&S::check_consistency}},
      {.option = "trace",
       .argument = "FILE",
       .variable = "RP_TRACE",
       .field_name = "trace",
       .concerns = "all processes",
       .help = "Write what every process did and when to FILE, for Perfetto and chrome://tracing",
       .details = "Write what every process did and when to FILE, for Perfetto and chrome://tracing: "
                  "[tracing.md](tracing.md); exits 74 before the run if FILE cannot be written",
       .kind = TextSetting{&S::trace, parse_file}},
      {.option = "gpu-profile",
       .argument = "NAME|FILE",
       .variable = "RP_GPU_PROFILE",
       .field_name = "gpu_profile",
       .concerns = "coordinator",
       .help = "Predict with this profile what a step takes; train prints the prediction at its end",
       .details = "A [profile](formats/gpu_profile.md) of the GPUs: `train` then prints in the end what `rp-plan` "
                  "predicts for its steps",
       .kind = TextSetting{&S::gpu_profile, parse_gpu_profile}},
      {.option = "network",
       .argument = "RATE",
       .variable = "RP_NETWORK",
       .field_name = "network",
       .default_text = "left out of plans and predictions",
       .concerns = "coordinator",
       .help = "The links between several nodes, for plans and for simulated and predicted times of steps: 10gbit, or "
               "with a latency 25gbit,70us",
       .details =
           "The links between the nodes, for plans and for simulated and predicted times of steps: `10gbit`, or "
           "with a latency `25gbit,70us`; as `rp-plan plan` takes it and `rp-launch doctor --hosts` measures it; "
           "has no effect on one node, and `rp-launch` says so",
       .kind = TextSetting{&S::network, parse_network}},
      {.option = "attach-on-fault",
       .variable = "RP_ATTACH_ON_FAULT",
       .field_name = "attach_on_fault",
       .default_value = "0",
       .concerns = "all processes",
       .help = "Have a process that crashes wait for a debugger",
       .details = "Have a process that crashes wait for a debugger: see [Debugging one worker](#debugging-one-worker)",
       .kind = SwitchSetting{&S::attach_on_fault}},
      {.argument = "all|weights|gradients|none",
       .variable = "RP_YIELD_TO_ACTIVATIONS",
       .field_name = "yield_to_activations",
       .default_value = "all",
       .concerns = "workers",
       .help = "Which bulk copies let inputs and outputs pass on a worker's link",
       .kind = ChoiceSetting{&S::yield_to_activations, {"all", "weights", "gradients", "none"}}},
  };
  return settings;
}

void read_setting(RuntimeSettings& settings, const RuntimeSetting& setting, const std::string& name,
                  const std::string& value) {
  if (const auto* text = std::get_if<TextSetting>(&setting.kind)) {
    settings.*(text->field) = text->read(name, value);
  } else if (const auto* choice = std::get_if<ChoiceSetting>(&setting.kind)) {
    settings.*(choice->field) = parse_choice(name, value, choice->words);
  } else if (const auto* number = std::get_if<NumberSetting>(&setting.kind)) {
    settings.*(number->field) = parse_count(name, value, number->least, number->most);
  } else {
    settings.*(std::get<SwitchSetting>(setting.kind).field) = parse_switch(name, value);
  }
}

RuntimeSettings RuntimeSettings::from_environment() {
  RuntimeSettings settings;
  for (const RuntimeSetting& setting : runtime_settings()) {
    if (const auto value = environment_value(setting.variable)) {
      read_setting(settings, setting, setting.variable, *value);
    }
  }
  return settings;
}

std::vector<std::pair<std::string, std::string>> RuntimeSettings::variables() const {
  std::vector<std::pair<std::string, std::string>> list;
  for (const RuntimeSetting& setting : runtime_settings()) {
    if (auto value = text_of(*this, setting)) list.emplace_back(setting.variable, std::move(*value));
  }
  return list;
}

RuntimeSettings RuntimeSettings::completed(const SessionOptions& program) const {
  RuntimeSettings result = *this;
  RuntimeSettings asked;
  static_cast<SessionOptions&>(asked) = program;
  for (const RuntimeSetting& setting : runtime_settings()) {
    const auto value = text_of(asked, setting);
    if (value && !value->empty()) {
      read_setting(result, setting, cat("SessionOptions::", setting.field_name), *value);
      continue;
    }
    if (value) std::visit([&](const auto& kind) { (result.*(kind.field)).reset(); }, setting.kind);
    if (*setting.default_value != '\0' && !text_of(result, setting)) {
      read_setting(result, setting, setting.variable, setting.default_value);
    }
  }
  return result;
}

}  // namespace rp
