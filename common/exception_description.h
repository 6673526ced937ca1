// common/exception_description.h
// Turns an exception that ends a process of a run into a text and an exit code.
//
// Two places have texts of their own on purpose: LayerFailure, for exceptions in layers and losses, and run_program(),
// for programs that run no user code.
#pragma once

#include <string>

#include "roundpipe/error.h"

namespace rp {

struct ExceptionDescription {
  std::string text;
  ExitCode code = ExitCode::kUserError;
  bool is_error = false;  // an rp::Error, or the lack of a resource, which is reported as one
};

// Describes the exception that is being handled: an rp::Error by its message and code, a standard exception that
// reports a lacking resource as the rp::Error of lacking_resource(), and anything else with kUserError. REQUIRES:
// called in a catch block or a terminate handler.
[[nodiscard]] ExceptionDescription describe_current_exception();

}  // namespace rp
