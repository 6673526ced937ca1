// launcher/trace/json_text.h
// Builds JSON text piece by piece, without a stream for each value: a trace has millions of
// numbers.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace rp {

// The caller writes the structure (brackets, commas) with raw(). Used by one thread.
class JsonText {
 public:
  JsonText& raw(std::string_view text) {
    text_ += text;
    return *this;
  }
  JsonText& number(std::int64_t value) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_.append(digits.data(), end);
    return *this;
  }
  // Appends a time in microseconds, with three decimals.
  JsonText& time(std::int64_t ns) {
    number(ns / 1000);
    const auto rest = static_cast<int>(ns % 1000);
    text_ += '.';
    for (const int place : {100, 10, 1}) text_ += static_cast<char>('0' + rest / place % 10);
    return *this;
  }
  JsonText& string(std::string_view text) {
    text_ += '"';
    for (const char c : text) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += c >= ' ' && c <= '~' ? c : '?';
    }
    text_ += '"';
    return *this;
  }
  // Appends `,"key":value`.
  JsonText& field(std::string_view key, std::int64_t value) { return raw(",\"").raw(key).raw("\":").number(value); }
  JsonText& field(std::string_view key, std::string_view value) { return raw(",\"").raw(key).raw("\":").string(value); }

  [[nodiscard]] std::size_t size() const { return text_.size(); }
  [[nodiscard]] const std::string& text() const { return text_; }
  void clear() { text_.clear(); }

 private:
  std::string text_;
};

}  // namespace rp
