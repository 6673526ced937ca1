// common/bad_input.h
// Makes the error that refuses an input file: an rp::Error (kBadInput) whose message begins with
// the file's name.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

// Returns the error "FILE: pieces…", for the caller to throw.
template <typename... Pieces>
[[nodiscard]] Error bad_input(const std::filesystem::path& file, const Pieces&... pieces) {
  return Error(ExitCode::kBadInput, cat(file.string(), ": ", pieces...));
}

// Returns a name from another program's file in a form that is safe in a message: in quotes, with
// control characters and non-ASCII bytes as \xNN, and cut after 80 characters.
[[nodiscard]] std::string quoted_name(std::string_view name);

}  // namespace rp
