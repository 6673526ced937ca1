// launcher/probe/product_measure.h
// Measures the speed of one GPU in matrix products of the sizes that occur in transformers, and in
// copies inside its own memory.
#pragma once

#include <vector>

#include "cuda/context.h"
#include "cuda/cublas.h"
#include "launcher/doctor/probe_figures.h"

namespace rp {

// A linear layer with weights [out, in], applied to `rows` rows: forward [rows, in] x [in, out],
// and the two products of its backward pass.
struct ProductShape {
  int rows = 0;
  int in = 0;
  int out = 0;
};

struct ProductSettings {
  // Attention and MLP of models with the shapes of 1.7B and 8B parameters, with 8192 tokens.
  std::vector<ProductShape> shapes{
      {8192, 2048, 2048}, {8192, 2048, 6144}, {8192, 4096, 4096}, {8192, 4096, 14336}, {8192, 14336, 4096}};
  int num_warm_up = 2;
  int num_runs = 9;  // the result is the median of these
};

// Sets the figure for memory bandwidth and, if `cublas` is given, those for products: the sum of
// all operations over the sum of their times. Occupies memory of the GPU while it runs, 1.7 GB for
// the shapes above. The operands are random numbers, because a GPU is faster with zeros. Throws
// rp::Error.
void measure_products(const CudaContext& context, const Cublas* cublas, const ProductSettings& settings,
                      ProbeFigures& figures);

}  // namespace rp
