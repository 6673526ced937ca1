// common/bad_input.h
// How an input file is refused: rp::Error (kBadInput) that begins with the file's name.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

// "FILE: pieces…", to be thrown.
template <typename... Pieces>
[[nodiscard]] Error bad_input(const std::filesystem::path& file, const Pieces&... pieces) {
  return Error(ExitCode::kBadInput, cat(file.string(), ": ", pieces...));
}

// A name that somebody else's file contains, fit for a message: in quotes, control characters and bytes that are not
// ASCII as \xNN, cut after 80 characters.
[[nodiscard]] std::string quoted_name(std::string_view name);

}  // namespace rp
