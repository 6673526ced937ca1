// pipeline/torch_worker/user_code.h
// Calls of what the user wrote: layers and losses.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "roundpipe/error.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// Whatever it throws becomes a failure of `layer` (or of the loss), in one line. What LibTorch's tensors lack of the
// device's memory comes as the device's rp::Error.
template <typename Code>
auto run_user_code(std::int64_t layer, Code&& code) {
  try {
    return std::forward<Code>(code)();
  } catch (const LayerFailure&) {
    throw;
  } catch (const Error& error) {
    throw LayerFailure(layer, error.what(),
                       error.code() == ExitCode::kNoResource ? error.code() : ExitCode::kUserError);
  } catch (const c10::Error& error) {
    throw LayerFailure(layer, error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw LayerFailure(layer, error.what());
  } catch (...) {
    throw LayerFailure(layer, "an exception of unknown type");
  }
}

}  // namespace rp
