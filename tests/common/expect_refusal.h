// tests/common/expect_refusal.h
// Checks an error in a test: its code, and what its message names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

#include "roundpipe/error.h"

namespace rp {

// Calls `action`, which must throw rp::Error with this code and a short message that contains each
// of `parts`.
template <typename Action>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Action&& action) {
  try {
    action();
    FAIL() << "nothing was thrown; expected an error that names " << ::testing::PrintToString(parts);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
    EXPECT_LT(message.size(), 700U) << "a message that is too long to be read";
  }
}

// Like expect_error(), for an input file that is refused.
template <typename Action>
void expect_refusal(const std::vector<std::string>& parts, Action&& action) {
  expect_error(ExitCode::kBadInput, parts, std::forward<Action>(action));
}

// Returns the message of the exception that `action` throws, or "accepted" if it throws none.
template <typename Action>
[[nodiscard]] std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace rp
