// common/lacking_resource.h
// What the standard library throws where the system has no room, in our terms.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "roundpipe/error.h"

namespace rp {

// The rp::Error (kNoResource), with what to do, that says the same as `error`: there can be no further thread or open
// file, or no memory is left. None for all else.
[[nodiscard]] inline std::optional<Error> lacking_resource(const std::exception& error) {
  const auto says = [](const std::string& text) { return Error(ExitCode::kNoResource, text); };
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return says("there is no memory left for this process; give the job more");
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr) return std::nullopt;
  switch (system->code().value()) {
    case EAGAIN:
      return says(std::string("cannot start a thread: ") + error.what() + "; raise the limit on processes (ulimit -u)");
    case EMFILE:
    case ENFILE: return says(std::string(error.what()) + "; raise the limit on open files (ulimit -n)");
    case ENOMEM: return says(std::string(error.what()) + "; give the job more memory");
    default: return std::nullopt;
  }
}

}  // namespace rp
