// rp-probe: measures the copies of one GPU for `rp-launch doctor`. docs/doctor.md.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "common/program_main.h"
#include "common/text.h"
#include "launcher/probe_measure.h"
#include "roundpipe/error.h"

namespace {

constexpr const char* kUsage =
    "usage: rp-probe [--gpu UUID] [--wait]\n"
    "Measures copies between the host and one GPU, and prints a line of JSON.\n"
    "  --gpu UUID  that GPU (default: the first that CUDA_VISIBLE_DEVICES shows)\n"
    "  --wait      take the memory, then measure once for each line of standard input\n";

int print_line(rp::ProbeMeasure& measure) { return rp::print_output(rp::probe_line(measure.measure()) + "\n"); }

int probe(const std::vector<std::string>& arguments) {
  bool waits = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--help" || arguments[i] == "-h") return rp::print_output(kUsage);
    if (arguments[i] == "--wait") {
      waits = true;
    } else if (arguments[i] == "--gpu" && i + 1 < arguments.size()) {
      setenv("CUDA_VISIBLE_DEVICES", arguments[++i].c_str(), 1);  // read when the driver starts
    } else {
      throw rp::Error(rp::ExitCode::kUsage, rp::cat("unknown option ", arguments[i], "; rp-probe --help lists the options"));
    }
  }
  const rp::CudaContext context = rp::CudaContext::open(rp::cuda_driver(), "");
  rp::ProbeMeasure measure(context, {});
  if (!waits) return print_line(measure);
  for (std::string line; std::getline(std::cin, line);) {
    if (const int code = print_line(measure); code != 0) return code;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("rp-probe", [&] { return probe({argv + 1, argv + argc}); });
}
