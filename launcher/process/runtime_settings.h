// launcher/process/runtime_settings.h
// Defines the settings of the runtime that rp-launch and a Session share: options of rp-launch, and
// RP_... variables that both read.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rp {

// The default for how the streams of different workers wait for each other on GPUs.
inline constexpr const char* kDefaultSignals = "memops";
inline constexpr int kMaxThreadsPerWorker = 1024;
inline constexpr int kMaxWaitTimeoutSeconds = 1'000'000;

// The settings that the user has set. nullopt: not set, so the default of the code that uses the
// setting applies.
struct RuntimeSettings {
  std::optional<std::string> device;          // RP_DEVICE: "cpu", "cuda", "sim:NAME"
  std::optional<std::string> store;           // RP_STORE: "shm", "memfd"
  std::optional<std::string> params_on;       // RP_PARAMS_ON: a directory
  std::optional<std::string> plan;            // RP_PLAN: "auto" or a file
  std::optional<bool> prefetch;               // RP_PREFETCH: 0, 1
  std::optional<bool> warm_up;                // RP_WARM_UP: 0, 1
  std::optional<std::string> give_way;        // RP_GIVE_WAY: "all", "weights", "gradients", "none"
  std::optional<int> threads_per_worker;      // RP_THREADS_PER_WORKER
  std::optional<int> wait_timeout_seconds;    // RP_WAIT_TIMEOUT
  std::optional<int> attach_timeout_seconds;  // RP_ATTACH_TIMEOUT
  std::optional<std::string> signals;         // RP_SIGNALS: "memops", "events"
  std::optional<std::string> gpu_memory;      // RP_GPU_MEMORY: a size, such as 24G
  std::optional<bool> allow_nondeterminism;   // RP_ALLOW_NONDETERMINISM: 0, 1
  std::optional<bool> fp16_accumulation;      // RP_FP16_ACCUMULATION: 0, 1
  std::optional<bool> check_consistency;      // RP_CHECK_CONSISTENCY: 0, 1
  std::optional<std::string> trace;           // RP_TRACE: a file
  std::optional<std::string> gpu_profile;     // RP_GPU_PROFILE: a name or a file

  // Reads the variables. An empty one counts as unset. Throws rp::Error kUsage, which names the
  // variable.
  [[nodiscard]] static RuntimeSettings from_environment();

  // Returns the variables, as (name, value), that pass the settings on to another process.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> variables() const;
};

// Parse the value of an option or variable. `name` is the name under which the user set it
// ("--store", "RP_STORE"). Each function throws rp::Error kUsage, which lists the allowed values.
// parse_count appends `advice` to its message.
[[nodiscard]] std::string parse_device(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_store(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_signals(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_memory(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_give_way(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_directory(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_plan(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_file(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_gpu_profile(const std::string& name, const std::string& value);
[[nodiscard]] bool parse_switch(const std::string& name, const std::string& value);
[[nodiscard]] int parse_count(const std::string& name, const std::string& value, int least, int most,
                              const char* advice = "");
// Accepts only the values in `allowed`.
[[nodiscard]] std::string parse_choice(const std::string& name, const std::string& value,
                                       const std::vector<std::string>& allowed);

// Returns the value of an environment variable; nullopt if it is unset or empty.
[[nodiscard]] std::optional<std::string> environment_value(const std::string& name);

}  // namespace rp
