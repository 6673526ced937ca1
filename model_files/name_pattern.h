// model_files/name_pattern.h
// A regular expression over names of weights and layers, from a command line or from somebody else's
// adapter_config.json.
#pragma once

#include <regex>
#include <string>

namespace rp {

// ECMAScript, without references back to groups. Bounded: it takes time that grows with the expression times a name,
// never exponentially, and little of the stack.
class NamePattern {
 public:
  // What an expression may have, where a part that is repeated a counted number of times counts as often: parts;
  // alternatives and repetitions among them; and parts behind each other and around each other.
  static constexpr std::size_t kMaxTerms = 50'000;
  static constexpr std::size_t kMaxChoices = 1000;
  static constexpr std::size_t kMaxDepth = 1000;

  // What of a name the expression describes: all of it, or some part.
  enum class Extent { kWhole, kAnywhere };

  // Throws rp::Error (kUsage) that begins with `what` for text that is no such expression, or exceeds these limits.
  NamePattern(const char* what, const std::string& text, Extent extent);

  // `name` has no line breaks.
  [[nodiscard]] bool matches(const std::string& name) const { return std::regex_match(name, regex_); }

 private:
  std::regex regex_;
};

}  // namespace rp
