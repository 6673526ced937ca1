#include "roundpipe/model.h"

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

Model& Model::tie(ParameterUse first, ParameterUse second) {
  for (const ParameterUse& use : {first, second}) {
    if (use.layer < 0 || use.layer >= num_layers()) {
      throw Error(ExitCode::kUserError,
                  cat("tie(): there is no layer ", use.layer, " for parameter '", use.parameter,
                      "': the model has layers 0 to ", num_layers() - 1, " so far; add all layers before tying"));
    }
  }
  if (first.layer == second.layer) {
    throw Error(ExitCode::kUserError,
                cat("tie(): '", first.parameter, "' and '", second.parameter, "' are both in layer ", first.layer,
                    "; use one parameter twice in that layer's forward() instead"));
  }
  if (second.layer < first.layer) std::swap(first, second);
  ties_.emplace_back(std::move(first), std::move(second));
  return *this;
}

}  // namespace rp
