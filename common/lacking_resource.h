// common/lacking_resource.h
// Converts an exception that the standard library throws when the system lacks a resource to an
// rp::Error.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "roundpipe/error.h"

namespace rp {

// If `error` reports that no further thread or open file is possible, or that no memory is left,
// returns an rp::Error (kNoResource) that says so and adds a remedy. Otherwise returns nothing.
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
