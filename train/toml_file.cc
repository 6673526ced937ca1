#include "train/toml_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "common/bad_input.h"
#include "common/input_file.h"

// toml++ 3.3 finds some malformed texts, as "[[[[", by assertions only; without them what it does next is undefined, and with NDEBUG it even
// assumes that they hold. Here one that does not is an exception.
namespace rp {
[[noreturn]] static void fail_toml_assertion(const char* condition) { throw std::logic_error(condition); }
}  // namespace rp
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) (static_cast<bool>(condition) ? void(0) : ::rp::fail_toml_assertion(#condition))
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace rp {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 20;
// toml++ calls itself for each part of a key when it takes its tables apart.
constexpr int kMaxDots = 1000;

// Goes through a text as far as is needed to tell strings and comments from the rest. What a malformed text means here does not matter: toml++
// refuses it at the same place.
class TomlText {
 public:
  TomlText(const std::filesystem::path& file, std::string_view text) : file_(file), text_(text) {}

  // Outside of strings and comments TOML is ASCII, but toml++ 3.3 has no defined answer to other characters there (its
  // is_non_ascii_horizontal_whitespace()). Keys of settings have no dots outside of quotes, either.
  void check() {
    int dots = 0;
    while (next_ < text_.size()) {
      const char c = text_[next_];
      if (c == '"' || c == '\'') {
        skip_string(c);
      } else if (c == '#') {
        next_ = std::min(text_.find('\n', next_), text_.size());
      } else {
        if (static_cast<unsigned char>(c) >= 0x80) throw Error(ExitCode::kBadInput, cat(file_.string(), ":", line(), ": a character that is not ASCII stands outside of quotes"));
        dots = c == '\n' ? 0 : dots + (c == '.' ? 1 : 0);
        if (dots > kMaxDots) throw Error(ExitCode::kBadInput, cat(file_.string(), ":", line(), ": has more than ", kMaxDots, " dots"));
        ++next_;
      }
    }
  }

 private:
  [[nodiscard]] std::string line() const { return cat(1 + std::ranges::count(text_.substr(0, next_), '\n')); }

  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool is_long = text_.substr(next_, 3) == three;
    next_ += is_long ? 3 : 1;
    while (next_ < text_.size()) {
      if (is_long ? text_.substr(next_, 3) == three : text_[next_] == quote) break;
      if (!is_long && text_[next_] == '\n') return;  // it has no end
      next_ += quote == '"' && text_[next_] == '\\' ? 2 : 1;
    }
    next_ += is_long ? 3 : 1;
    while (is_long && next_ < text_.size() && text_[next_] == quote) ++next_;  // up to two more are its last characters
  }

  const std::filesystem::path& file_;
  std::string_view text_;
  std::size_t next_ = 0;
};

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* truth = node.as_boolean()) return truth->get() ? "true" : "false";
  if (const auto* number = node.as_floating_point()) {
    std::array<char, 40> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number->get());
    return std::string(digits.data(), end.ptr);
  }
  return std::nullopt;
}

}  // namespace

std::vector<TomlEntry> read_toml_file(const std::filesystem::path& file) {
  const std::string text = InputFile::open(file).read_all(kMaxBytes);
  TomlText(file, text).check();
  std::vector<TomlEntry> entries;
  try {
    const toml::table table = toml::parse(text, file.string());
    for (const auto& [key, node] : table) entries.push_back({key.source().begin.line, std::string(key.str()), scalar_text(node)});
  } catch (const toml::parse_error& error) {
    throw Error(ExitCode::kBadInput, cat(file.string(), ":", error.source().begin.line, ": ", error.description()));
  } catch (const std::logic_error&) {  // an assertion
    throw bad_input(file, "is no TOML; its lines are as `batch-size = 8`");
  }
  std::ranges::stable_sort(entries, {}, &TomlEntry::line);
  return entries;
}

}  // namespace rp
