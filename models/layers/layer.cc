#include "roundpipe/layer.h"

namespace rp {

at::Tensor placeholder(at::IntArrayRef shape, at::ScalarType dtype) {
  // detach() makes the result a leaf of its own rather than a view that autograd tracks.
  return at::zeros({1}, dtype).expand(shape).detach().requires_grad_(at::isFloatingType(dtype));
}

}  // namespace rp
