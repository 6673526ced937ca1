#include "launcher/process/runtime_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "common/text.h"
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

std::string parse_store(const std::string& name, const std::string& value) {
  return parse_choice(name, value, {"shm", "memfd"});
}

std::string parse_signals(const std::string& name, const std::string& value) {
  return parse_choice(name, value, {"memops", "events"});
}

std::string parse_memory(const std::string& name, const std::string& value) {
  if (bytes_of(value)) return value;
  throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; allowed: a size, as 24G or 512M"));
}

std::string parse_give_way(const std::string& name, const std::string& value) {
  return parse_choice(name, value, {"all", "weights", "gradients", "none"});
}

std::string parse_directory(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: a directory"));
  return value;
}

std::string parse_plan(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: auto or a file"));
  return value;
}

std::string parse_file(const std::string& name, const std::string& value) {
  if (value.empty()) throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: a file"));
  return value;
}

std::string parse_gpu_profile(const std::string& name, const std::string& value) {
  if (value.empty())
    throw Error(ExitCode::kUsage, cat(name, " is empty; allowed: the name of a GPU's profile, as rtx4090, or a file"));
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

std::optional<std::string> environment_value(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

RuntimeSettings RuntimeSettings::from_environment() {
  RuntimeSettings settings;
  if (const auto value = environment_value("RP_DEVICE")) settings.device = parse_device("RP_DEVICE", *value);
  if (const auto value = environment_value("RP_STORE")) settings.store = parse_store("RP_STORE", *value);
  if (const auto value = environment_value("RP_PARAMS_ON"))
    settings.params_on = parse_directory("RP_PARAMS_ON", *value);
  if (const auto value = environment_value("RP_PLAN")) settings.plan = parse_plan("RP_PLAN", *value);
  if (const auto value = environment_value("RP_PREFETCH")) settings.prefetch = parse_switch("RP_PREFETCH", *value);
  if (const auto value = environment_value("RP_WARM_UP")) settings.warm_up = parse_switch("RP_WARM_UP", *value);
  if (const auto value = environment_value("RP_GIVE_WAY")) settings.give_way = parse_give_way("RP_GIVE_WAY", *value);
  if (const auto value = environment_value("RP_SIGNALS")) settings.signals = parse_signals("RP_SIGNALS", *value);
  if (const auto value = environment_value("RP_GPU_MEMORY"))
    settings.gpu_memory = parse_memory("RP_GPU_MEMORY", *value);
  if (const auto value = environment_value("RP_ALLOW_NONDETERMINISM")) {
    settings.allow_nondeterminism = parse_switch("RP_ALLOW_NONDETERMINISM", *value);
  }
  if (const auto value = environment_value("RP_FP16_ACCUMULATION")) {
    settings.fp16_accumulation = parse_switch("RP_FP16_ACCUMULATION", *value);
  }
  if (const auto value = environment_value("RP_THREADS_PER_WORKER")) {
    settings.threads_per_worker = parse_count("RP_THREADS_PER_WORKER", *value, 1, kMaxThreadsPerWorker);
  }
  if (const auto value = environment_value("RP_WAIT_TIMEOUT")) {
    settings.wait_timeout_seconds = parse_count("RP_WAIT_TIMEOUT", *value, 1, kMaxWaitTimeoutSeconds);
  }
  if (const auto value = environment_value("RP_ATTACH_TIMEOUT")) {
    settings.attach_timeout_seconds = parse_count("RP_ATTACH_TIMEOUT", *value, 1, kMaxWaitTimeoutSeconds);
  }
  if (const auto value = environment_value("RP_CHECK_CONSISTENCY")) {
    settings.check_consistency = parse_switch("RP_CHECK_CONSISTENCY", *value);
  }
  if (const auto value = environment_value("RP_TRACE")) settings.trace = parse_file("RP_TRACE", *value);
  if (const auto value = environment_value("RP_GPU_PROFILE"))
    settings.gpu_profile = parse_gpu_profile("RP_GPU_PROFILE", *value);
  return settings;
}

std::vector<std::pair<std::string, std::string>> RuntimeSettings::variables() const {
  std::vector<std::pair<std::string, std::string>> list;
  if (device) list.emplace_back("RP_DEVICE", *device);
  if (store) list.emplace_back("RP_STORE", *store);
  if (params_on) list.emplace_back("RP_PARAMS_ON", *params_on);
  if (plan) list.emplace_back("RP_PLAN", *plan);
  if (prefetch) list.emplace_back("RP_PREFETCH", *prefetch ? "1" : "0");
  if (warm_up) list.emplace_back("RP_WARM_UP", *warm_up ? "1" : "0");
  if (give_way) list.emplace_back("RP_GIVE_WAY", *give_way);
  if (signals) list.emplace_back("RP_SIGNALS", *signals);
  if (gpu_memory) list.emplace_back("RP_GPU_MEMORY", *gpu_memory);
  if (allow_nondeterminism) list.emplace_back("RP_ALLOW_NONDETERMINISM", *allow_nondeterminism ? "1" : "0");
  if (fp16_accumulation) list.emplace_back("RP_FP16_ACCUMULATION", *fp16_accumulation ? "1" : "0");
  if (threads_per_worker) list.emplace_back("RP_THREADS_PER_WORKER", std::to_string(*threads_per_worker));
  if (wait_timeout_seconds) list.emplace_back("RP_WAIT_TIMEOUT", std::to_string(*wait_timeout_seconds));
  if (attach_timeout_seconds) list.emplace_back("RP_ATTACH_TIMEOUT", std::to_string(*attach_timeout_seconds));
  if (check_consistency) list.emplace_back("RP_CHECK_CONSISTENCY", *check_consistency ? "1" : "0");
  if (trace) list.emplace_back("RP_TRACE", *trace);
  if (gpu_profile) list.emplace_back("RP_GPU_PROFILE", *gpu_profile);
  return list;
}

}  // namespace rp
