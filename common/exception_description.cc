#include "common/exception_description.h"

#include <exception>

#include "common/lacking_resource.h"

namespace rp {

ExceptionDescription describe_current_exception() {
  const auto of_error = [](const Error& error) {
    return ExceptionDescription{.text = error.what(), .code = error.code(), .is_error = true};
  };
  try {
    throw;
  } catch (const Error& error) {
    return of_error(error);
  } catch (const std::exception& error) {
    if (const auto lacking = lacking_resource(error)) return of_error(*lacking);
    return {.text = error.what()};
  } catch (...) {
    return {.text = "an exception of unknown type"};
  }
}

}  // namespace rp
