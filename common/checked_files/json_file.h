// common/checked_files/json_file.h
// Reads a small JSON file that another program wrote, such as config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rp {

// Reads a JSON object. Throws rp::Error (kBadInput), naming the file and the rule, unless the file
// is a regular file of at most `max_bytes` bytes with valid UTF-8 and JSON, and contains an object
// that has no key twice and is at most 32 levels deep.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Like read_json_file(), for the text of such a file. Messages call the file `path`.
[[nodiscard]] nlohmann::json parse_json_file(const std::filesystem::path& path, std::string_view text);

// Returns a member of the object. It must be a whole number from `min` to `max`, written without a
// fraction or an exponent, because the parser stores all other numbers as floating-point numbers,
// whose conversion to an integer may be undefined. Throws rp::Error (kBadInput), naming `path`, the
// key and the value, and json::out_of_range if there is no such member.
[[nodiscard]] std::int64_t whole_number(const std::filesystem::path& path, const nlohmann::json& object,
                                        const std::string& key, std::int64_t min = 0, std::int64_t max = INT64_MAX);

}  // namespace rp
