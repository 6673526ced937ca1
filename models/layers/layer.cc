#include "roundpipe/layer.h"

namespace rp {

at::Tensor placeholder(at::IntArrayRef shape, at::ScalarType dtype) {
  // detach() so that the result is a leaf of its own and not a view that autograd follows.
  return at::zeros({1}, dtype).expand(shape).detach().requires_grad_(true);
}

}  // namespace rp
