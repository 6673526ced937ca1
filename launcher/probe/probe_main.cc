// Implements rp-probe, which measures one GPU for `rp-launch doctor`: docs/doctor.md.

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "launcher/machine/program_path.h"
#include "launcher/probe/probe_measure.h"
#include "launcher/probe/product_measure.h"
#include "roundpipe/error.h"

namespace {

constexpr const char* kUsage =
    "usage: rp-probe [--gpu UUID] [--products] [--wait]\n"
    "Measures one GPU and its copies from and to the host, and prints a line of JSON.\n"
    "  --gpu UUID  that GPU (default: the first that CUDA_VISIBLE_DEVICES shows)\n"
    "  --products  measure matrix products and the GPU's own memory as well, once\n"
    "  --wait      take the memory, then measure once for each line of standard input\n";

// Measures products, which is done only once, at the start.
rp::ProbeFigures products_of(const rp::CudaContext& context) {
  rp::ProbeFigures figures;
  std::error_code ignored;
  const auto own_directory = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string library_path =
      rp::cat(std::getenv("LD_LIBRARY_PATH") == nullptr ? "" : std::getenv("LD_LIBRARY_PATH"));
  const rp::FoundCublas cublas = rp::load_cublas(rp::find_cuda_plugin(own_directory, library_path), rp::cublas_name());
  figures.products_problem = cublas.problem;
  try {
    rp::measure_products(context, cublas.table ? &*cublas.table : nullptr, {}, figures);
  } catch (const rp::Error& error) {
    figures.products_problem = error.what();
  }
  return figures;
}

int print_line(rp::ProbeMeasure& measure, const rp::ProbeFigures& products) {
  rp::ProbeFigures figures = measure.measure();
  for (double rp::ProbeFigures::*each : rp::kProductFigures) figures.*each = products.*each;
  figures.products_problem = products.products_problem;
  return rp::print_output(rp::probe_line(figures) + "\n");
}

int probe(const std::vector<std::string>& arguments) {
  bool waits = false, has_products = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h") return rp::print_output(kUsage);
    if (arguments[i] == "--wait") {
      waits = true;
    } else if (arguments[i] == "--products") {
      has_products = true;
    } else if (arguments[i] == "--gpu" && i + 1 < arguments.size()) {
      setenv("CUDA_VISIBLE_DEVICES", arguments[++i].c_str(), 1);  // the driver reads it when it is initialised
    } else {
      throw rp::Error(rp::ExitCode::kUsage,
                      rp::cat("unknown option ", arguments[i], "; rp-probe --help lists the options"));
    }
  }
  const rp::CudaContext context = rp::CudaContext::open(rp::cuda_driver(), "");
  rp::ProbeMeasure measure(context, {});
  std::optional<rp::ProbeFigures> products;
  const auto print = [&] {
    if (!products) products = has_products ? products_of(context) : rp::ProbeFigures{};
    return print_line(measure, *products);
  };
  if (!waits) return print();
  for (std::string line; std::getline(std::cin, line);) {
    if (const int code = print(); code != 0) return code;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("rp-probe", [&] { return probe({argv + 1, argv + argc}); });
}
