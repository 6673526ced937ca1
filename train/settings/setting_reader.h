// train/settings/setting_reader.h
// Converts the texts of options to values.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/text.h"
#include "common/time_text.h"
#include "train/settings/options.h"
#include "train/settings/problems.h"
#include "train/settings/settings.h"

namespace rp {

// The words that an option accepts, with the value of each.
template <typename Value>
using Choices = std::initializer_list<std::pair<const char*, Value>>;

// Reads values by the names of their options. An option that was not given leaves its value
// unchanged. So does an invalid one, which is added to the problems.
class SettingReader {
 public:
  // `is_emulated`: of a run on an emulated device.
  SettingReader(const OptionValues& values, Problems& problems, bool is_emulated)
      : values_(values), problems_(problems), is_emulated_(is_emulated) {}

  [[nodiscard]] bool is_emulated() const { return is_emulated_; }

  [[nodiscard]] const OptionValue* find(const char* name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }

  template <typename Number>
  void read_number(const char* name, Number& result, std::type_identity_t<Number> least,
                   std::type_identity_t<Number> most) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    Number number{};
    const char* end = value->text.data() + value->text.size();
    const auto [stop, failure] = std::from_chars(value->text.data(), end, number);
    const char* kind = std::is_floating_point_v<Number> ? "a number" : "a whole number";
    if (failure != std::errc{} || stop != end || !(number >= least && number <= most)) {
      refuse(*value, cat("must be ", kind, " from ", least, " to ", most));
      return;
    }
    result = number;
  }

  template <typename Number>
  void read_number(const char* name, std::optional<Number>& result, std::type_identity_t<Number> least,
                   std::type_identity_t<Number> most) {
    if (find(name) != nullptr) read_number(name, result.emplace(), least, most);
  }

  // Reads a number that is above 0 and at most `most`.
  void read_positive(const char* name, double& result, double most) {
    const std::size_t before = problems_.messages().size();
    double number = result;
    read_number(name, number, 0.0, most);
    if (const OptionValue* value = find(name);
        value != nullptr && problems_.messages().size() == before && number == 0) {
      refuse(*value, "must be above 0");
      return;
    }
    result = number;
  }

  // Reads "200" (steps), "90s", "15m", "2h" or "never".
  void read_interval(const char* name, SaveInterval& result, std::int64_t most) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text == "never") {
      result = {.steps = 0, .seconds = 0};
      return;
    }
    if (const auto seconds = seconds_of(value->text, most)) {
      result = {.steps = 0, .seconds = *seconds};
      return;
    }
    std::int64_t steps = 0;
    const char* end = value->text.data() + value->text.size();
    const auto [stop, failure] = std::from_chars(value->text.data(), end, steps);
    if (failure != std::errc{} || stop != end || steps < 1 || steps > most) {
      refuse(*value,
             cat("must be a number of steps, a time as 90s, 15m or 2h, or never; at most ", most, " steps or seconds"));
      return;
    }
    result = {.steps = steps, .seconds = 0};
  }

  void read_path(const char* name, std::filesystem::path& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text.empty()) {
      refuse(*value, "is empty; give a path");
      return;
    }
    result = value->text;
  }

  void read_text(const char* name, std::string& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text.empty()) {
      refuse(*value, "is empty; leave it out");
      return;
    }
    result = value->text;
  }

  void read_switch(const char* name, bool& result) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    if (value->text != "true" && value->text != "false") {
      refuse(*value, "must be true or false");
      return;
    }
    result = value->text == "true";
  }

  template <typename Value>
  void read_choice(const char* name, Value& result, Choices<Value> choices) {
    const OptionValue* value = find(name);
    if (value == nullptr) return;
    std::vector<std::string> names;
    std::string list;
    for (const auto& [text, choice] : choices) {
      if (value->text == text) {
        result = choice;
        return;
      }
      names.emplace_back(text);
      list += cat(list.empty() ? "" : " or ", text);
    }
    refuse(*value, cat("must be ", list, did_you_mean(value->text, names)));
  }

  template <typename Value>
  void read_choice(const char* name, std::optional<Value>& result, Choices<Value> choices) {
    if (find(name) != nullptr) read_choice(name, result.emplace(), choices);
  }

  // Returns a setting for a message: "--batch-size 3", "run.toml:4: batch-size 3", or the default
  // value in the same form.
  [[nodiscard]] std::string text_of_setting(const char* name, std::int64_t effective) const {
    const OptionValue* value = find(name);
    return cat(value == nullptr ? cat("--", name) : value->source, " ", effective);
  }

  // Adds a problem between several options. It is the file's problem (kBadInput) if all of them
  // that were given are in the file.
  void refuse_together(std::initializer_list<const char*> names, const std::string& message) {
    bool is_file = true;
    for (const char* name : names) {
      if (const OptionValue* value = find(name); value != nullptr && !value->is_from_file) is_file = false;
    }
    problems_.add(is_file ? ExitCode::kBadInput : ExitCode::kUsage, message);
  }

  void require_all(bool is_export) {
    std::string missing;
    for (const TrainOption& option : train_options()) {
      if (is_emulated_ && option.name() != std::string_view("model")) continue;
      if (is_export && option.name() == std::string_view("data")) continue;
      if (!option.is_required || find(option.name()) != nullptr) continue;
      missing += cat(missing.empty() ? "" : ", ", "--", option.name(), " ", option.spec.argument);
    }
    if (!missing.empty()) problems_.add(ExitCode::kUsage, cat("missing: ", missing, "; train --help explains them"));
  }

 private:
  void refuse(const OptionValue& value, const std::string& rule) {
    problems_.add(value.is_from_file ? ExitCode::kBadInput : ExitCode::kUsage,
                  cat(value.source, " ", rule, " (got '", value.text, "')"));
  }

  const OptionValues& values_;
  Problems& problems_;
  const bool is_emulated_;
};

}  // namespace rp
