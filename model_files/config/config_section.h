// model_files/config/config_section.h
// An object of config.json that checks its members as they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "common/bad_input.h"

namespace rp {

// A null member counts as absent. Each method throws rp::Error (kBadInput) naming the file, the key
// and what it must be. A method without a default value also throws if the key is absent. The path
// and the JSON object must outlive this object.
class ConfigSection {
 public:
  ConfigSection(const std::filesystem::path& file, const nlohmann::json& object) : file_(file), object_(object) {}

  [[nodiscard]] bool has(const char* key) const {
    asked_.insert(key);
    last_asked_ = key;
    return object_.contains(key) && !object_.at(key).is_null();
  }

  // Keeps unread() from listing members that matter only for certain values of another member.
  void knows(std::initializer_list<const char*> keys) const { asked_.insert(keys.begin(), keys.end()); }

  // Returns true if the member is present and null, which for some keys differs from absent.
  [[nodiscard]] bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  // Returns a whole number from 1 to `max`.
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t max) const { return whole(key, need(key), 1, max); }

  // Returns a whole number from 0 to `max`.
  [[nodiscard]] std::int64_t count(const char* key, std::int64_t max) const { return whole(key, need(key), 0, max); }

  // Returns a list of whole numbers from `min` to `max`; empty if the key is absent.
  [[nodiscard]] std::vector<std::int64_t> integers(const char* key, std::int64_t min, std::int64_t max) const {
    std::vector<std::int64_t> result;
    if (!has(key)) return result;
    if (!need(key).is_array()) throw wrong(key, need(key), "a list of whole numbers");
    for (const nlohmann::json& value : need(key)) result.push_back(whole(key, value, min, max));
    return result;
  }

  // Returns a number from `min` to `max`.
  [[nodiscard]] double number(const char* key, double min, double max) const {
    const nlohmann::json& value = need(key);
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!value.is_number() || !(number >= min && number <= max)) {
      throw wrong(key, value, cat("a number from ", min, " to ", max));
    }
    return number;
  }

  [[nodiscard]] bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const nlohmann::json& value = need(key);
    if (!value.is_boolean()) throw wrong(key, value, "true or false");
    return value.get<bool>();
  }

  [[nodiscard]] std::string text(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    const nlohmann::json& value = need(key);
    if (!value.is_string()) throw wrong(key, value, "a string");
    return value.get<std::string>();
  }

  // Returns a list of strings; empty if the key is absent.
  [[nodiscard]] std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> result;
    if (!has(key)) return result;
    if (!need(key).is_array()) throw wrong(key, need(key), "a list of strings");
    for (const nlohmann::json& value : need(key)) {
      if (!value.is_string()) throw wrong(key, value, "a list of strings");
      result.push_back(value.get<std::string>());
    }
    return result;
  }

  // Returns an empty section if the key is absent.
  [[nodiscard]] ConfigSection section(const char* key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    if (!has(key)) return ConfigSection(file_, kEmpty);
    const nlohmann::json& value = need(key);
    if (!value.is_object()) throw wrong(key, value, "an object");
    return ConfigSection(file_, value);
  }

  // Refuses a setting that is not supported. A value of false counts as absent.
  void require_absent(const char* key) const {
    if (has(key) && need(key) != false) throw wrong(key, need(key), "absent or null; it is not supported");
  }

  // Refuses a list that has an element other than the only supported value.
  void require_all(const char* key, const char* supported) const {
    if (!has(key)) return;
    for (const nlohmann::json& value : need(key)) {
      if (value != supported) throw wrong(key, value, cat(quoted_name(supported), " only; others are not supported"));
    }
  }

  // Returns the key of the first member that is itself an object; empty if there is none.
  [[nodiscard]] std::string nested() const {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_object()) return key;
    }
    return "";
  }

  // Returns the sorted keys of members that are not null and that no method has been called for.
  [[nodiscard]] std::vector<std::string> unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      if (!value.is_null() && !asked_.contains(key)) keys.push_back(key);
    }
    return keys;
  }

  // Refuses a setting whose value is not the only supported one.
  void require(const char* key, double supported) const {
    if (has(key) && number(key, -1e30, 1e30) != supported) {
      throw wrong(key, need(key), cat(supported, "; other values are not supported"));
    }
  }

  // Returns the key that a method was last called for. After an error it is the key whose value was
  // refused.
  [[nodiscard]] const std::string& last_asked() const { return last_asked_; }

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }

  template <typename... Pieces>
  [[nodiscard]] Error refuse(const Pieces&... pieces) const {
    return bad_input(file_, pieces...);
  }

 private:
  std::int64_t whole(const char* key, const nlohmann::json& value, std::int64_t min, std::int64_t max) const {
    // A number of 2^63 or more must not wrap around when it is converted to a signed one.
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < static_cast<std::uint64_t>(min) ||
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
      throw wrong(key, value, cat("a whole number from ", min, " to ", max));
    }
    return value.get<std::int64_t>();
  }

  const nlohmann::json& need(const char* key) const {
    if (!has(key)) throw bad_input(file_, "has no ", key);
    return object_.at(key);
  }

  Error wrong(const char* key, const nlohmann::json& value, const std::string& expected) const {
    return bad_input(file_, key, " is ", quoted_name(value.dump()), ", but must be ", expected);
  }

  const std::filesystem::path& file_;
  const nlohmann::json& object_;
  mutable std::set<std::string, std::less<>> asked_;
  mutable std::string last_asked_;
};

}  // namespace rp
