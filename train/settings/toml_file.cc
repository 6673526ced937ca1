#include "train/settings/toml_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <stdexcept>
#include <string_view>

#include "common/bad_input.h"
#include "common/files/input_file.h"

// toml++ 3.3 detects some malformed texts, such as "[[[[", only by assertions. Without them its
// behaviour is undefined, and with NDEBUG it even assumes that they hold. Here, a failed assertion
// throws an exception.
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
// toml++ recurses once for each part of a key when it destroys its tables.
constexpr std::ptrdiff_t kMaxDots = 2000;

// Returns whether the text is UTF-8 as TOML requires it: no overlong forms, no surrogates.
bool is_utf8(std::string_view text) {
  constexpr std::array<std::uint32_t, 4> kLeast = {0, 0x80, 0x800, 0x10000};  // by number of bytes after the first
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t more = first < 0x80 ? 0 : first >> 5 == 6 ? 1 : first >> 4 == 14 ? 2 : first >> 3 == 30 ? 3 : 4;
    if (more == 4 || more >= text.size() - i) return false;
    std::uint32_t code = more == 0 ? first : first & (0x3fU >> more);
    for (std::size_t k = 0; k < more; ++k) {
      const auto next = static_cast<unsigned char>(text[++i]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3fU);
    }
    if (code < kLeast[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
  }
  return true;
}

void check_lines(const std::filesystem::path& file, std::string_view text) {
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const auto refuse = [&](const std::string& what) {
      throw Error(ExitCode::kBadInput, cat(file.string(), ":", number, ": ", what));
    };
    if (!is_utf8(line)) refuse("is not valid UTF-8");
    if (std::ranges::count(line, '.') > kMaxDots) refuse(cat("has more than ", kMaxDots, " dots"));
    // See as_ascii().
    for (const char* z : {"\\u005a", "\\u005A", "\\U0000005a", "\\U0000005A"}) {
      if (line.find(z) != std::string_view::npos) refuse(cat(z, " is not supported; write Z"));
    }
    begin = end + 1;
  }
}

// toml++ 3.3 has undefined behaviour for a non-ASCII character where none is expected
// (is_non_ascii_horizontal_whitespace()). So it is given ASCII only: each byte of a non-ASCII
// character is encoded as Zxx, in hexadecimal. A Z, which no number or word of TOML except dates
// contains, is encoded as Z5a.
constexpr char kEscape = 'Z';

std::string as_ascii(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string ascii;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && c != kEscape) {
      ascii += c;
    } else {
      ascii += {kEscape, kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return ascii;
}

// Decodes such a text, or a part of one in an error message.
std::string from_ascii(std::string_view ascii) {
  std::string text;
  for (std::size_t i = 0; i < ascii.size(); ++i) {
    unsigned byte = 0;
    const bool is_escape =
        ascii[i] == kEscape && i + 2 < ascii.size() &&
        std::from_chars(ascii.data() + i + 1, ascii.data() + i + 3, byte, 16).ptr == ascii.data() + i + 3;
    text += is_escape ? static_cast<char>(byte) : ascii[i];
    i += is_escape ? 2 : 0;
  }
  return text;
}

std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return from_ascii(text->get());
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
  check_lines(file, text);
  std::vector<TomlEntry> entries;
  try {
    const toml::table table = toml::parse(as_ascii(text), file.string());
    for (const auto& [key, node] : table)
      entries.push_back({key.source().begin.line, from_ascii(key.str()), scalar_text(node)});
  } catch (const toml::parse_error& error) {
    throw Error(ExitCode::kBadInput,
                cat(file.string(), ":", error.source().begin.line, ": ", from_ascii(error.description())));
  } catch (const std::logic_error&) {  // a failed assertion
    throw bad_input(file, "is no TOML; its lines are as `batch-size = 8`");
  }
  std::ranges::stable_sort(entries, {}, &TomlEntry::line);
  return entries;
}

}  // namespace rp
