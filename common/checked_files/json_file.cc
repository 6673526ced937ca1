#include "common/checked_files/json_file.h"

#include <set>
#include <string>
#include <vector>

#include "common/bad_input.h"
#include "common/files/input_file.h"

namespace rp {

using nlohmann::json;

json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return parse_json_file(path, InputFile::open(path).read_all(max_bytes));
}

json parse_json_file(const std::filesystem::path& path, std::string_view text) {
  constexpr int kMaxDepth = 32;
  if (text.find('\0') != std::string_view::npos) throw bad_input(path, "is not valid JSON: it has a NUL byte");
  std::vector<std::set<std::string>> keys_by_depth;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw bad_input(path, "is more than ", kMaxDepth, " levels deep");
    const auto level = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start) {
      keys_by_depth.resize(level + 1);
      keys_by_depth.emplace_back();  // for the object's members, which are one level deeper
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_by_depth.at(level).insert(key).second) {
        throw bad_input(path, "has the key ", quoted_name(key), " twice");
      }
    }
    return true;
  };
  try {
    json value = json::parse(text, check);
    if (!value.is_object()) throw bad_input(path, "is not a JSON object");
    return value;
  } catch (const json::parse_error& error) {
    throw bad_input(path, "is not valid JSON at its byte ", error.byte);
  } catch (const json::exception&) {
    throw bad_input(path, "is not valid JSON: it has a number that no computer holds");
  }
}

std::int64_t whole_number(const std::filesystem::path& path, const json& object, const std::string& key,
                          std::int64_t min, std::int64_t max) {
  const json& value = object.at(key);
  const bool is_too_large =
      value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (!value.is_number_integer() || is_too_large || value.get<std::int64_t>() < min ||
      value.get<std::int64_t>() > max) {
    throw bad_input(path, "has ", value.dump(), " as \"", key, "\", which must be a whole number from ", min, " to ",
                    max);
  }
  return value.get<std::int64_t>();
}

}  // namespace rp
