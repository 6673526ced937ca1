// launcher/probe/product_measure.h
// Measures what one GPU reaches in matrix products of the sizes that transformers have, and in copies inside its own
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/context.h"
#include "cuda/cublas.h"
#include "launcher/doctor/probe_figures.h"

namespace rp {

// A linear layer [out, in] on so many rows: forward [rows, in] x [in, out], and the two products of its backward.
struct ProductShape {
  int rows = 0;
  int in = 0;
  int out = 0;
};

struct ProductSettings {
  // Attention and MLP of 1.7B- and 8B-shaped models, 8192 tokens.
  std::vector<ProductShape> shapes{
      {8192, 2048, 2048}, {8192, 2048, 6144}, {8192, 4096, 4096}, {8192, 4096, 14336}, {8192, 14336, 4096}};
  int num_warm_up = 2;
  int num_runs = 9;  // whose median counts
};

// Fills in the memory's figure, and with `cublas` those of products: all operations over the time that they take. Takes
// the GPU's memory meanwhile, 1.7 GB for the shapes above. Numbers that are multiplied are random: of zeros a GPU is
// faster. Throws rp::Error.
void measure_products(const CudaContext& context, const Cublas* cublas, const ProductSettings& settings,
                      ProbeFigures& figures);

}  // namespace rp
