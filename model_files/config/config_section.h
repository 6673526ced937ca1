// model_files/config/config_section.h
// An object of config.json whose members are checked as they are read.
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

// A null member counts as absent. Each method throws rp::Error (kBadInput) naming the file, the key and what it must
// be; those without a default also where the key is absent. The path and the object must outlive it.
class ConfigSection {
 public:
  ConfigSection(const std::filesystem::path& file, const nlohmann::json& object) : file_(file), object_(object) {}

  [[nodiscard]] bool has(const char* key) const {
    asked_.insert(key);
    last_asked_ = key;
    return object_.contains(key) && !object_.at(key).is_null();
  }

  // Keeps unread() from listing members that matter only if another member says so.
  void knows(std::initializer_list<const char*> keys) const { asked_.insert(keys.begin(), keys.end()); }

  // Whether it is there and null, which for some keys is not the same as absent.
  [[nodiscard]] bool is_null(const char* key) const { return object_.contains(key) && object_.at(key).is_null(); }

  // From 1 to `max`.
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t max) const { return whole(key, need(key), 1, max); }

  // From 0 to `max`.
  [[nodiscard]] std::int64_t count(const char* key, std::int64_t max) const { return whole(key, need(key), 0, max); }

  // A list of them, at least `min`, at most `max`; empty if it is absent.
  [[nodiscard]] std::vector<std::int64_t> integers(const char* key, std::int64_t min, std::int64_t max) const {
    std::vector<std::int64_t> result;
    if (!has(key)) return result;
    if (!need(key).is_array()) throw wrong(key, need(key), "a list of whole numbers");
    for (const nlohmann::json& value : need(key)) result.push_back(whole(key, value, min, max));
    return result;
  }

  // At least `min`, at most `max`.
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

  // A list of strings; empty if it is absent.
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

  // An empty one if it is absent.
  [[nodiscard]] ConfigSection section(const char* key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    if (!has(key)) return ConfigSection(file_, kEmpty);
    const nlohmann::json& value = need(key);
    if (!value.is_object()) throw wrong(key, value, "an object");
    return ConfigSection(file_, value);
  }

  // A setting that we have not. One that is spelled out as off counts as absent.
  void require_absent(const char* key) const {
    if (has(key) && need(key) != false) throw wrong(key, need(key), "absent or null; it is not supported");
  }

  // A list of which we have one value only.
  void require_all(const char* key, const char* supported) const {
    if (!has(key)) return;
    for (const nlohmann::json& value : need(key)) {
      if (value != supported) throw wrong(key, value, cat(quoted_name(supported), " only; others are not supported"));
    }
  }

  // The first member that is an object itself, or "".
  [[nodiscard]] std::string nested() const {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_object()) return key;
    }
    return "";
  }

  // The keys of members that are not null and that no method has been called for, sorted.
  [[nodiscard]] std::vector<std::string> unread() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      if (!value.is_null() && !asked_.contains(key)) keys.push_back(key);
    }
    return keys;
  }

  // A setting of which we have one value only.
  void require(const char* key, double supported) const {
    if (has(key) && number(key, -1e30, 1e30) != supported) {
      throw wrong(key, need(key), cat(supported, "; other values are not supported"));
    }
  }

  // The key that a method was last called for. After an error that is the key whose value was refused.
  [[nodiscard]] const std::string& last_asked() const { return last_asked_; }

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }

  template <typename... Pieces>
  [[nodiscard]] Error refuse(const Pieces&... pieces) const {
    return bad_input(file_, pieces...);
  }

 private:
  std::int64_t whole(const char* key, const nlohmann::json& value, std::int64_t min, std::int64_t max) const {
    // A number beyond 2^63 must not wrap on its way to a signed one.
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
