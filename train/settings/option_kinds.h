// train/settings/option_kinds.h
// Makes the rows of the option table (option_table.cc): one function for each kind of option, which derives from the
// option's field how it is read and how it is shown.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "train/settings/options.h"
#include "train/settings/setting_reader.h"

namespace rp {

// Each returns the text of a value in the form that its option accepts.
inline std::string text_of(std::integral auto value) { return std::to_string(value); }
inline std::string text_of(bool value) { return value ? "true" : "false"; }
inline std::string text_of(double value) {
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::string(digits.data(), end.ptr);
}
inline std::string text_of(const std::string& value) { return value; }
inline std::string text_of(const std::filesystem::path& value) { return value.string(); }
template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value ? text_of(*value) : "";
}

// Returns the word that stands for a value; "" if `value` is an optional without one.
template <typename Given, typename Value>
std::string name_of(const Given& value, Choices<Value> choices) {
  const auto found =
      std::find_if(choices.begin(), choices.end(), [&](const auto& choice) { return choice.second == value; });
  return found == choices.end() ? "" : found->first;
}

// A row of the table under construction. Each method returns the row with one property changed.
struct OptionRow : TrainOption {
  using Test = bool (*)(const TrainSettings& settings);

  [[nodiscard]] OptionRow required() const {
    OptionRow changed = *this;
    changed.is_required = true;
    return changed;
  }
  [[nodiscard]] OptionRow for_pairs() const {
    OptionRow changed = *this;
    changed.is_of_pairs = true;
    return changed;
  }
  // Neither the header of a run nor a checkpoint has the setting.
  [[nodiscard]] OptionRow not_kept() const {
    OptionRow changed = *this;
    changed.row = nullptr;
    return changed;
  }
  // If `test` holds, the header of a run shows `text` in place of the value.
  [[nodiscard]] OptionRow shown_where(Test test, const char* text) const {
    return with_row([test, text](const TrainSettings& settings, SettingRow shown) -> std::optional<SettingRow> {
      if (test(settings)) shown.shown = text;
      return shown;
    });
  }
  // If `test` holds, the setting was not given, and the header shows what that means.
  [[nodiscard]] OptionRow unset_where(Test test, const char* meaning) const {
    return with_row(
        [test, meaning](const TrainSettings& settings, const SettingRow& shown) -> std::optional<SettingRow> {
          return test(settings) ? SettingRow{shown.name, "", meaning} : shown;
        });
  }
  // If `test` does not hold, the setting has no meaning in this run.
  [[nodiscard]] OptionRow only_where(Test test) const {
    return with_row([test](const TrainSettings& settings, SettingRow shown) -> std::optional<SettingRow> {
      return test(settings) ? std::optional(shown) : std::nullopt;
    });
  }

 private:
  // The row whose `row` is what `change` makes of this one's.
  template <typename Change>
  OptionRow with_row(Change change) const {
    OptionRow changed = *this;
    changed.row = [before = row, change](const TrainSettings& settings) -> std::optional<SettingRow> {
      const std::optional<SettingRow> shown = before(settings);
      return shown ? change(settings, *shown) : shown;
    };
    return changed;
  }
};

inline OptionSpec spec(const char* name, const char* argument, const char* default_text, const char* help,
                       const char* details = "") {
  return {.letter = std::string_view(name) == "help" ? "h" : "",
          .name = name,
          .argument = argument,
          .default_text = default_text,
          .help = help,
          .details = details};
}

// An option that is read and shown by functions of its own. Either may be null: see TrainOption.
inline OptionRow custom_option(const OptionSpec& spec, void (*read)(SettingReader&, TrainSettings&),
                               std::optional<SettingRow> (*row)(const TrainSettings&)) {
  return {{.spec = spec, .read = read, .row = row}};
}

// An option that sets one field: a member of TrainSettings, or a function from the settings to the field.
// `read(reader, field)` sets the field, and `text(field)` returns its value as the option accepts it.
template <typename Field, typename Read, typename Text>
OptionRow field_option(const OptionSpec& spec, Field field, Read read, Text text) {
  return {{.spec = spec,
           .read = [=](SettingReader& reader, TrainSettings& settings) { read(reader, std::invoke(field, settings)); },
           .row = [=](const TrainSettings& settings) -> std::optional<SettingRow> {
             const std::string value = text(std::invoke(field, settings));
             return SettingRow{spec.name, value, value};
           }}};
}
template <typename Field, typename Read>
OptionRow field_option(const OptionSpec& spec, Field field, Read read) {
  return field_option(spec, field, read, [](const auto& value) { return text_of(value); });
}

template <typename Field, typename Least, typename Most>
OptionRow number_option(const OptionSpec& spec, Field field, Least least, Most most) {
  return field_option(spec, field,
                      [=](SettingReader& reader, auto& value) { reader.read_number(spec.name, value, least, most); });
}
// A number above 0.
template <typename Field>
OptionRow positive_option(const OptionSpec& spec, Field field, double most) {
  return field_option(spec, field,
                      [=](SettingReader& reader, double& value) { reader.read_positive(spec.name, value, most); });
}
template <typename Field>
OptionRow switch_option(const OptionSpec& spec, Field field) {
  return field_option(spec, field, [=](SettingReader& reader, bool& value) { reader.read_switch(spec.name, value); });
}
template <typename Field>
OptionRow text_option(const OptionSpec& spec, Field field) {
  return field_option(spec, field,
                      [=](SettingReader& reader, std::string& value) { reader.read_text(spec.name, value); });
}
template <typename Field>
OptionRow path_option(const OptionSpec& spec, Field field) {
  return field_option(spec, field,
                      [=](SettingReader& reader, std::filesystem::path& value) { reader.read_path(spec.name, value); });
}
// One of several words.
template <typename Field, typename Value>
OptionRow choice_option(const OptionSpec& spec, Field field, Choices<Value> choices) {
  return field_option(
      spec, field, [=](SettingReader& reader, auto& value) { reader.read_choice(spec.name, value, choices); },
      [=](const auto& value) { return name_of(value, choices); });
}

}  // namespace rp
