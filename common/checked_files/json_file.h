// common/checked_files/json_file.h
// A small JSON file that somebody else wrote, as config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rp {

// Reads a JSON object. Throws rp::Error (kBadInput) naming the file and the rule: a regular file of at most
// `max_bytes`, valid UTF-8 and JSON, an object, no key twice, at most 32 levels deep.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// The same for the text of such a file; `path` is what messages call it.
[[nodiscard]] nlohmann::json parse_json_file(const std::filesystem::path& path, std::string_view text);

// Returns a member of the object. It must be a whole number from `min` to `max`, written without a fraction or an
// exponent: the parser holds all other numbers as floating-point ones, whose conversion to an integer may be undefined.
// Throws rp::Error (kBadInput) naming `path`, the key and the value, and json::out_of_range if there is no such member.
[[nodiscard]] std::int64_t whole_number(const std::filesystem::path& path, const nlohmann::json& object,
                                        const std::string& key, std::int64_t min = 0, std::int64_t max = INT64_MAX);

}  // namespace rp
