// model_files/name_pattern.h
// A regular expression over names of weights and layers. It comes from a command line or from a
// downloaded adapter_config.json, so it is not trusted.
#pragma once

#include <regex>
#include <string>

namespace rp {

// The syntax is ECMAScript without back references. Matching is bounded: its time grows with the
// size of the expression times the length of a name, never exponentially, and it needs little of
// the stack.
class NamePattern {
 public:
  // Limits of an expression. A part that is repeated a counted number of times counts that many
  // times. kMaxTerms limits the parts; kMaxChoices the alternatives and repetitions among them;
  // kMaxDepth the parts that follow or enclose each other.
  static constexpr std::size_t kMaxTerms = 50'000;
  static constexpr std::size_t kMaxChoices = 1000;
  static constexpr std::size_t kMaxDepth = 1000;

  // Whether the expression must match the whole name or may match any part of it.
  enum class Extent { kWhole, kAnywhere };

  // Throws rp::Error (kUsage), with a message that begins with `what`, if `text` is not such an
  // expression or exceeds the limits.
  NamePattern(const char* what, const std::string& text, Extent extent);

  // REQUIRES: `name` has no line breaks.
  [[nodiscard]] bool matches(const std::string& name) const { return std::regex_match(name, regex_); }

 private:
  std::regex regex_;
};

}  // namespace rp
