// pipeline/torch_worker/user_code.h
// Calls code that the user wrote: layers and losses.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <utility>

#include "roundpipe/error.h"
#include "worker/executor/stage_executor.h"

namespace rp {

// Calls `code` and converts every exception to a LayerFailure of `layer` (or of the loss) with a
// message of one line. If LibTorch cannot allocate memory of the device, the exception is an
// rp::Error of the device. Differs from describe_current_exception() on purpose: a std::bad_alloc of a layer is a
// failure of that layer like any other, because a layer may request any number of bytes.
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
