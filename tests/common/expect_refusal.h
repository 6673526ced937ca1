// tests/common/expect_refusal.h
// What a test asks of an error: its code, and what its message names.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

#include "roundpipe/error.h"

namespace rp {

// Calls `action`, which must throw rp::Error with this code and each of `parts` in its message, which is short.
template <typename Action>
void expect_error(ExitCode code, const std::vector<std::string>& parts, Action&& action) {
  try {
    action();
    FAIL() << "nothing was thrown; expected an error that names " << ::testing::PrintToString(parts);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    for (const std::string& part : parts) EXPECT_THAT(message, ::testing::HasSubstr(part));
    EXPECT_LT(message.size(), 700U) << "a message that nobody reads";
  }
}

// The same for an input file that is refused.
template <typename Action>
void expect_refusal(const std::vector<std::string>& parts, Action&& action) {
  expect_error(ExitCode::kBadInput, parts, std::forward<Action>(action));
}

// What the exception says that `action` throws; "accepted" if it throws none.
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
