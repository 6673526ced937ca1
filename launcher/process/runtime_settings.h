// launcher/process/runtime_settings.h
// Defines the settings of the runtime as one table. The options of rp-launch, the variables RP_...,
// the checks of SessionOptions, `rp-launch --help` and the table in docs/launcher.md are made from it.
//
// A new setting is a field of SessionOptions, a row of the table, and the code that uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "roundpipe/session.h"

namespace rp {

// The settings that were given. A field without a value was not given. Adds fields for settings that are no concern of
// a program.
inline constexpr int kMaxWaitTimeoutSeconds = 1'000'000;
inline constexpr int kDefaultWaitTimeoutSeconds = 600;

struct RuntimeSettings : SessionOptions {
  // RP_YIELD_TO_ACTIVATIONS: which bulk copies let inputs and outputs pass on a worker's link: "all" (the default),
  // "weights", "gradients", "none".
  std::optional<std::string> yield_to_activations{};
  // RP_ATTACH_ON_FAULT: a process that crashes waits until a debugger has attached to it and has left it again.
  std::optional<bool> attach_on_fault{};
  // RP_REDUCE: how the gradients of several nodes reach those that add them: "mpi" (the default), "nccl".
  std::optional<std::string> reduce{};
  // RP_NODE_TIMEOUT: a node is lost when nothing has come from it for so long.
  std::optional<int> node_timeout_seconds{};

  // Reads the variables; an empty one counts as unset. Throws rp::Error (kUsage) that names the variable.
  [[nodiscard]] static RuntimeSettings from_environment();

  // Returns the variables that pass the settings on to another process, as (name, value).
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> variables() const;

  // Returns the settings that hold for a run: `program`'s where given, else these, else the defaults. Throws rp::Error
  // (kUsage) that names the field of SessionOptions.
  [[nodiscard]] RuntimeSettings completed(const SessionOptions& program) const;
};

// The kinds of settings. `read` returns the value to store, or throws rp::Error (kUsage) that begins with `name` and
// says what is allowed.
struct TextSetting {
  std::optional<std::string> RuntimeSettings::*field;
  std::string (*read)(const std::string& name, const std::string& value);
};
struct ChoiceSetting {
  std::optional<std::string> RuntimeSettings::*field;
  std::vector<std::string> words;
};
struct SwitchSetting {
  std::optional<bool> RuntimeSettings::*field;
};
struct NumberSetting {
  std::optional<int> RuntimeSettings::*field;
  int least;
  int most;
};

struct RuntimeSetting {
  const char* option = "";    // "wait-timeout", for --wait-timeout of rp-launch; "": there is none, measurements only
  const char* argument = "";  // "SECONDS" in the help; "" for a switch
  const char* variable;       // "RP_WAIT_TIMEOUT"
  const char* field_name;     // "wait_timeout_seconds" of SessionOptions
  const char* default_value = "";  // "600"; "": none, see `default_text`
  const char* default_text = "";   // says what happens without a value; "": `default_value` says it
  const char* concerns;            // the processes that use it: "workers on GPUs", "coordinator", ...
  const char* help;
  const char* details = "";  // Markdown for docs/launcher.md, in place of `help`; "" if that says it all
  std::variant<TextSetting, ChoiceSetting, SwitchSetting, NumberSetting> kind;

  // The default as people read it; "" if there is nothing to say.
  [[nodiscard]] const char* shown_default() const { return *default_text != '\0' ? default_text : default_value; }
};

[[nodiscard]] const std::vector<RuntimeSetting>& runtime_settings();

// Sets a field of `settings` from `value`, which was given as `name` ("--store", "RP_STORE"). Throws rp::Error (kUsage)
// for a value that is not allowed.
void read_setting(RuntimeSettings& settings, const RuntimeSetting& setting, const std::string& name,
                  const std::string& value);

// Readers of single values, for settings outside the table as well. `name` is what the user wrote ("--store",
// "RP_STORE"). They throw rp::Error (kUsage) that says what is allowed; `advice` ends the message of parse_count().
[[nodiscard]] std::string parse_device(const std::string& name, const std::string& value);
[[nodiscard]] std::string parse_file(const std::string& name, const std::string& value);
[[nodiscard]] bool parse_switch(const std::string& name, const std::string& value);
[[nodiscard]] int parse_count(const std::string& name, const std::string& value, int least, int most,
                              const char* advice = "");
// Reads a time as "90s", "15m" or "2h", and returns seconds.
[[nodiscard]] std::int64_t parse_seconds(const std::string& name, const std::string& value);
// Accepts only the values in `allowed`.
[[nodiscard]] std::string parse_choice(const std::string& name, const std::string& value,
                                       const std::vector<std::string>& allowed);

// Returns the value of an environment variable; nothing if it is unset or empty.
[[nodiscard]] std::optional<std::string> environment_value(const std::string& name);

}  // namespace rp
