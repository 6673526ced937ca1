#include "model_files/name_pattern.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "common/bad_input.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

// __polynomial (GCC's) follows all paths through the expression at once; the default tries one
// after the other, which takes exponential time. The cost of __polynomial is bounded only if groups
// are not captured (nosubs).
constexpr auto kFlags = std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial;

// Measures the size of an expression. GCC's implementation recurses for each part that follows or
// encloses another one when it compiles an expression, and for each choice when it matches.
class SizeReader {
 public:
  explicit SizeReader(std::string_view text) : text_(text) {
    while (next_ < text_.size() && !is_too_large()) read_term();
  }

  [[nodiscard]] bool is_too_large() const {
    return total_.terms > NamePattern::kMaxTerms || total_.choices > NamePattern::kMaxChoices ||
           max_depth_ > NamePattern::kMaxDepth;
  }

  [[nodiscard]] bool has_reference() const { return has_reference_; }

 private:
  struct Size {
    std::size_t terms = 0, choices = 0;
  };
  // An open group.
  struct Level {
    Size before_last{};        // total_ at the start of the last part, which a repetition count may follow
    std::size_t sequence = 0;  // the number of parts in sequence since the last |
  };

  void add_part() {
    Level& level = levels_.back();
    level.before_last = total_;
    ++level.sequence;
    ++total_.terms;
    max_depth_ = std::max(max_depth_, ++depth_);
  }

  void read_term() {
    const char c = text_[next_++];
    if (c == '(') {
      add_part();
      levels_.emplace_back();
    } else if (c == ')' && levels_.size() > 1) {
      depth_ -= levels_.back().sequence;
      levels_.pop_back();
    } else if (c == '|') {
      depth_ -= std::exchange(levels_.back().sequence, 0);
      ++total_.choices;
    } else if (c == '*' || c == '+' || c == '?') {
      ++total_.choices;
    } else if (c == '[') {
      skip_class();
      add_part();
    } else if (c == '{') {
      repeat();
    } else {
      if (c == '\\') {
        // A back reference. The library adds up its digits in an int, which can overflow.
        has_reference_ = has_reference_ || (next_ < text_.size() && text_[next_] >= '1' && text_[next_] <= '9');
        ++next_;
      }
      add_part();
    }
  }

  // Moves past the ] that ends the class, which may contain names such as [:alpha:].
  void skip_class() {
    while (next_ < text_.size() && text_[next_] != ']') {
      const std::string_view begin = text_.substr(next_, 2);
      if (begin == "[:" || begin == "[." || begin == "[=") {
        const std::size_t end = text_.find(std::string{begin[1], ']'}, next_ + 2);
        next_ = std::min(end, text_.size() - 2) + 2;
      } else {
        next_ += begin[0] == '\\' ? 2 : 1;
      }
    }
    ++next_;
  }

  // Reads the larger number of {2,5}.
  void repeat() {
    std::size_t times = 1;
    while (next_ < text_.size() && text_[next_] != '}') {
      std::size_t number = 0;
      const auto [end, error] = std::from_chars(text_.data() + next_, text_.data() + text_.size(), number);
      if (error == std::errc::result_out_of_range) number = NamePattern::kMaxTerms;
      times = std::max(times, std::min(number, NamePattern::kMaxTerms));
      next_ = std::max(next_ + 1, static_cast<std::size_t>(end - text_.data()));
    }
    ++next_;
    const Size& before = levels_.back().before_last;  // both at most kMax..., so no product overflows
    total_.terms += (total_.terms - before.terms) * (times - 1);
    total_.choices += (total_.choices - before.choices) * (times - 1) + times;
  }

  std::string_view text_;
  std::size_t next_ = 0;
  Size total_{};
  std::size_t depth_ = 0, max_depth_ = 0;
  bool has_reference_ = false;
  std::vector<Level> levels_{1};
};

void check_size(const char* what, const std::string& text) {
  const SizeReader size(text);
  if (size.has_reference()) {
    throw Error(ExitCode::kUsage,
                cat(what, " ", quoted_name(text),
                    " is no regular expression for names: references to groups, as \\1, are not supported"));
  }
  if (size.is_too_large()) {
    throw Error(ExitCode::kUsage, cat(what, " ", quoted_name(text), " is too large a regular expression: at most ",
                                      NamePattern::kMaxTerms, " parts, ", NamePattern::kMaxChoices,
                                      " alternatives and repetitions, counted as often as they are repeated, and ",
                                      NamePattern::kMaxDepth, " parts behind or around each other; write it shorter"));
  }
}

}  // namespace

NamePattern::NamePattern(const char* what, const std::string& text, Extent extent) {
  check_size(what, text);
  try {
    regex_.assign(text, kFlags);  // on its own first: ")(" is invalid, but ".*(?:)().*" is valid
    // std::regex_search() would start again at each character.
    if (extent == Extent::kAnywhere) regex_.assign(cat(".*(?:", text, ").*"), kFlags);
  } catch (const std::regex_error& error) {
    throw Error(ExitCode::kUsage, cat(what, " ", quoted_name(text), " is no regular expression: ", error.what()));
  }
}

}  // namespace rp
